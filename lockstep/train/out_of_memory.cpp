#include "lockstep/train/out_of_memory.h"

#include <optional>

#include "lockstep/engine/memory_tracker.h"
#include "lockstep/plan/room.h"

namespace lockstep::train {
namespace {

// What no action asked for: parameters while the rank starts, a checkpoint.
void rethrow_from_anywhere(const program::Layout& layout, int rank) {
  try {
    throw;
  } catch (const engine::OutOfMemory&) {
    throw;
  } catch (...) {
    engine::rethrow_out_of_memory(layout, rank, "something outside of a step", {});
  }
}

}  // namespace

void rethrow_with_memory_table(const config::RunConfig& config, const program::Layout& layout, int rank) {
  try {
    rethrow_from_anywhere(layout, rank);
  } catch (const engine::OutOfMemory& error) {
    Message message = error.message();
    const auto measured = error.measured.peak > 0 ? std::optional(error.measured) : std::nullopt;
    message.what += plan::shortage_text(config, layout, {.rank = rank, .room = plan::limit_of(config)}, measured);
    throw OutOfMemoryError(std::move(message));
  }
  throw;
}

}  // namespace lockstep::train
