// Which call a rank is in, for messages: kept of every call, written out where one is printed.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/program/ledger.h"

namespace lockstep::comm {

// May lie in memory that processes share: zeros name no call.
struct CallLabel {
  program::CallId id{};
  int32_t peer = -1;   // of send and recv: the other side's rank in the world
  int64_t number = 0;  // of the collectives of the communicator, or of the messages between two ranks; 0: no call, but what `id` names
  program::Collective collective = program::Collective::kAllReduce;
  bool operator==(const CallLabel&) const = default;

  // "all_reduce #12 'reduce_grad bucket 0'", "send #3 'send_f stage 0' to rank 2".
  std::string text() const;
};
// No call: "a call", "the making".
CallLabel named_label(const char* name);

}  // namespace lockstep::comm
