// The GPU that the tests of this folder run on, emulated or real, and what they count on it.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#ifdef LOCKSTEP_ON_CUDA
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#else
#include "support/gpu/emulated_gpu.h"
#endif

namespace lockstep::testing {

inline at::Device gpu_device() {
  EXPECT_TRUE(at::hasCUDA() && at::getNumGPUs() > 0) << "these tests need a GPU";
  return {at::kCUDA, 0};
}

// How often the thread that made it has waited for the GPU. On a real one only what PyTorch itself tells of (its "sync debug
// mode": reads of values and copies that block, not events), for one thread at a time.
#ifdef LOCKSTEP_ON_CUDA
class SynchronisationCounter : public c10::WarningHandler {
 public:
  SynchronisationCounter() : guard_(this) { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_WARN); }
  ~SynchronisationCounter() override {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  }
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("synchronizing") != std::string::npos) ++counts_["a synchronizing CUDA operation"];
  }
  std::map<std::string, int64_t> take() { return std::exchange(counts_, {}); }

 private:
  std::map<std::string, int64_t> counts_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};
#else
class SynchronisationCounter {
 public:
  SynchronisationCounter() { gpu::take_synchronisations(); }
  std::map<std::string, int64_t> take() { return gpu::take_synchronisations(); }
};
#endif

}  // namespace lockstep::testing
