// Out of memory as a user reads it.
#pragma once

#include "lockstep/config/run_config.h"
#include "lockstep/program/layout.h"

namespace lockstep::train {

// To be called in a handler: where the exception that is handled there tells that memory was short (engine/memory_tracker.h),
// it goes on as OutOfMemoryError with the table of memory by category and the cheapest ways out; any other as it is.
[[noreturn]] void rethrow_with_memory_table(const config::RunConfig& config, const program::Layout& layout, int rank);

// Runs `work` of one rank so.
template <typename Work>
auto with_memory_table(const config::RunConfig& config, const program::Layout& layout, int rank, Work work) {
  try {
    return work();
  } catch (...) {
    rethrow_with_memory_table(config, layout, rank);
  }
}

}  // namespace lockstep::train
