// What a rank says that runs out of memory: where, what it asked for, and what it held.
#pragma once

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/program.h"

namespace lockstep::engine {

// LS4001: beyond memory.device_limit. LS4002: the host or the device itself has no more. Its message is one line; the
// table of memory and the ways out are added where the run configuration is known (train/out_of_memory.h).
class OutOfMemory : public OutOfMemoryError {
 public:
  OutOfMemory(Message message, program::MemoryBytes measured);
  const program::MemoryBytes measured;  // the largest of each category so far
};

// To be called in a handler: goes on with the exception that is handled there, as OutOfMemory where it tells that memory
// was short (DeviceLimitReached, std::bad_alloc, c10::OutOfMemoryError) for `doing`.
[[noreturn]] void rethrow_out_of_memory(const program::Layout& layout, int rank, const std::string& doing,
                                        const program::MemoryBytes& measured);
// "forward of blocks.3, microbatch 1".
std::string doing_text(const program::Action& action, const program::Layout& layout);

}  // namespace lockstep::engine
