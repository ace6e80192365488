#include "lockstep/engine/out_of_memory.h"

#include <c10/util/Exception.h>

#include <new>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/engine/memory_tracker.h"

namespace lockstep::engine {
namespace {

std::string bytes_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

OutOfMemory::OutOfMemory(Message message, program::MemoryBytes measured)
    : OutOfMemoryError(std::move(message)), measured(measured) {}

std::string doing_text(const program::Action& action, const program::Layout& layout) {
  const int layer = action.layer >= 0 || action.unit < 0 ? action.layer : layout.layer_of(action.unit);
  const program::KindWords& words = program::words_of(action.kind);
  std::string text(words.verb.empty() ? words.name : words.verb);
  if (layer >= 0) text += cat(" of ", arch::layer_table(layout.model).at(static_cast<size_t>(layer)).name);
  if (action.bucket >= 0) text += cat(" of bucket ", action.bucket);
  if (action.microbatch >= 0) text += cat(", microbatch ", action.microbatch);
  return text;
}

void rethrow_out_of_memory(const program::Layout& layout, int rank, const std::string& doing,
                           const program::MemoryBytes& measured) {
  const std::string who = cat("rank ", rank, " (", layout.mesh.describe(rank), ")");
  const auto error = [&](const char* code, const std::string& told) {
    return OutOfMemory({.code = code, .what = cat(who, told)}, measured);
  };
  try {
    throw;
  } catch (const DeviceLimitReached& full) {
    throw error("LS4001", cat(" out of memory: ", doing, " asked ", bytes_text(full.asked), ", ", bytes_text(full.free),
                              " free of memory.device_limit = ", bytes_text(full.limit)));
  } catch (const c10::OutOfMemoryError& none) {
    throw error("LS4002", cat(" got no more memory for ", doing, ": ", none.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    throw error("LS4002", cat(" got no more memory for ", doing, ": the host has none"));
  }
}

}  // namespace lockstep::engine
