#include "lockstep/comm/call_label.h"

#include "lockstep/base/text.h"

namespace lockstep::comm {

std::string CallLabel::text() const {
  if (number == 0) return program::call_text(id);
  const std::string call = cat(program::collective_name(collective), " #", number, " '", program::call_text(id), "'");
  if (collective == program::Collective::kSend) return cat(call, " to rank ", peer);
  return collective == program::Collective::kRecv ? cat(call, " from rank ", peer) : call;
}

CallLabel named_label(const char* name) { return {.id = program::named_call(name)}; }

}  // namespace lockstep::comm
