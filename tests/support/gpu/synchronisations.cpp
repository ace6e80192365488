#include "support/gpu/synchronisations.h"

#include <utility>

#include "support/gpu/emulated_gpu.h"

namespace lockstep::testing::gpu {
namespace {

thread_local std::map<std::string, int64_t> counts;

}  // namespace

void note_synchronisation(const std::string& reason) { ++counts[reason]; }

std::map<std::string, int64_t> take_synchronisations() { return std::exchange(counts, {}); }

}  // namespace lockstep::testing::gpu
