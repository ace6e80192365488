// The one function the program calls in the runtime library.
#include <vector>

#include "apps/lockstep/runtime/verbs.h"
#include "apps/lockstep/runtime_call.h"
#include "lockstep/base/check.h"

namespace lockstep::apps {
namespace {

const std::vector<RuntimeVerbRow>& runtime_verbs() {
  static const std::vector<RuntimeVerbRow> table = {
      {"chat", verb_chat},
      {"checkpoint", verb_checkpoint},
      {"generate", verb_generate_on_rank},
      {"train", verb_train_on_rank},
      {"verify", verb_verify_on_rank},
  };
  return table;
}

}  // namespace
}  // namespace lockstep::apps

extern "C" int lockstep_runtime_verb(const lockstep::apps::RuntimeCall* call) {
  using namespace lockstep::apps;
  for (const RuntimeVerbRow& row : runtime_verbs()) {
    if (row.name == call->command_line.verb) return row.function(call->command_line);
  }
  throw lockstep::InternalError("the runtime library has no verb '" + call->command_line.verb + "'");
}
