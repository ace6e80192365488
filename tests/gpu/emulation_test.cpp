// The emulated GPU itself: that it computes, and that it shows what it is there to show.
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "gpu/device.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/cuda_kernels.h"
#include "support/tensors.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Counts = std::map<std::string, int64_t>;

at::Tensor there(const at::Tensor& tensor) { return tensor.to(gpu_device()); }
at::Tensor pinned(at::IntArrayRef shape) { return at::empty(shape, at::TensorOptions(at::kFloat).pinned_memory(true)); }
c10::Stream another_stream() {
  return c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(gpu_device(), /*isHighPriority=*/false);
}
c10::Stream compute_stream() { return c10::impl::VirtualGuardImpl(at::kCUDA).getStream(gpu_device()); }

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

using Computation = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

TEST(Emulation, OperatorsComputeWhatTheCpuComputes) {
  const at::Tensor a = random("a", {6, 6}), b = random("b", {6, 6});
  const std::vector<Computation> all = {
      [](auto& x, auto& y) { return at::add(x, y, 2); },
      [](auto& x, auto& y) { return at::mm(x, y.t()); },
      [](auto& x, auto& y) { return at::cat({x.narrow(0, 1, 2), y.transpose(0, 1)}); },
      [](auto& x, auto&) { return x.sum({0}, true).div(2).expand({3, 6}).contiguous(); },
      [](auto& x, auto& y) { return at::where(x.gt(y), x, at::full({}, 7, x.options())); },
      [](auto& x, auto&) { return x.clone().index_put_({at::ones({2}, x.options().dtype(at::kLong))}, x.narrow(0, 0, 2), true); },
      [](auto& x, auto&) { return std::get<1>(at::sort(x.view({-1}))).to(at::kFloat); },
      [](auto& x, auto& y) { return x.clone().narrow(1, 2, 3).mul_(y.select(0, 1).narrow(0, 0, 3)); },
      [](auto& x, auto& y) {
        at::Tensor out = at::empty({0}, x.options());
        at::mul_out(out, x, y);
        return out;
      },
      [](auto& x, auto& y) {
        at::Tensor out = at::zeros({6, 12}, x.options()), half = out.narrow(1, 6, 6);
        at::exp_out(half, x.sub(y));
        return out;
      },
      [](auto& x, auto&) { return std::get<0>(at::native_layer_norm(x, {6}, {}, {}, 1e-5)); },
      [](auto& x, auto&) { return at::nonzero(x.gt(0)).to(at::kFloat); },
      [](auto& x, auto&) { return x.to(at::kBFloat16).mul(3).to(at::kFloat); },
      [](auto& x, auto&) { return x.view({4, 9}).unfold(1, 3, 3).select(1, 1).clone(); },
  };
  for (size_t i = 0; i < all.size(); ++i) {
    const at::Tensor actual = all[i](there(a), there(b));
    EXPECT_TRUE(actual.is_cuda()) << i;
    expect_close(actual.cpu(), all[i](a, b), cat("computation ", i), 1e-6);  // LayerNorm is made of other operators
  }
}

TEST(Emulation, InPlaceOperatorsAndViewsKeepTheirMemory) {
  const at::Tensor x = there(at::zeros({4, 4}));
  void* memory = x.data_ptr();
  EXPECT_EQ(x.add_(1).data_ptr(), memory);
  x.view({16}).narrow(0, 4, 4).fill_(5);
  EXPECT_EQ(x.data_ptr(), memory);
  EXPECT_EQ(x.sum().item<float>(), 12 + 20);
}

TEST(Emulation, TensorsOfTwoDevicesAreRefused) {
  const at::Tensor here = at::ones({2, 2}), on_gpu = there(here);
  const std::string told = "Expected all tensors to be on the same device";
  EXPECT_THAT(refusal([&] { at::add(on_gpu, here); }), HasSubstr(told));
  EXPECT_THAT(refusal([&] { at::mm(on_gpu, here); }), HasSubstr(told));
  EXPECT_THAT(refusal([&] { at::cat({on_gpu, here}); }), HasSubstr(told));
  EXPECT_EQ(at::add(on_gpu, at::full({}, 2.0)).sum().item<float>(), 12) << "a single number may come from the host";
}

TEST(Emulation, WhatIsReadBeforeItIsWrittenIsNaN) {
  EXPECT_TRUE(at::empty({100}, at::TensorOptions(gpu_device())).isnan().all().item<bool>());
  EXPECT_TRUE(at::empty({100}, at::TensorOptions(gpu_device()).dtype(at::kBFloat16)).isnan().all().item<bool>());
}

Counts counted(const std::function<void()>& body) {
  SynchronisationCounter counter;
  body();
  return counter.take();
}

TEST(Emulation, WhatMakesTheHostWaitIsCounted) {
  const at::Tensor x = there(at::ones({8})), on_host = pinned({8});
  on_host.fill_(1);
  EXPECT_THAT(counted([&] { x.add(1).mul_(2).sum(); }), IsEmpty());
  EXPECT_THAT(counted([&] { x.sum().item<float>(); }), ElementsAre(Pair("item", 1)));
  EXPECT_THAT(counted([&] { x.cpu(); }), ElementsAre(Pair("copy to the host", 1)));
  EXPECT_THAT(counted([&] { there(at::ones({8})); }), ElementsAre(Pair("copy from pageable memory", 1)));
  EXPECT_THAT(counted([&] { x.copy_(on_host); }), ElementsAre(Pair("copy to the device", 1)));
  EXPECT_THAT(counted([&] { x.copy_(on_host, /*non_blocking=*/true); }), IsEmpty());
  EXPECT_THAT(counted([&] { on_host.copy_(x, /*non_blocking=*/true); }), IsEmpty());
  EXPECT_THAT(counted([&] { at::empty({8}).copy_(x, /*non_blocking=*/true); }), ElementsAre(Pair("copy to pageable memory", 1)));
  EXPECT_THAT(counted([&] { at::nonzero(x); }), ElementsAre(Pair("size of aten::nonzero", 1)));
  EXPECT_THAT(counted([&] { compute_stream().synchronize(); }), ElementsAre(Pair("stream", 1)));
  EXPECT_THAT(counted([&] {
                c10::Event event(at::kCUDA);
                event.record(compute_stream());
                event.synchronize();
              }),
              ElementsAre(Pair("event", 1)));
}

TEST(Emulation, CopiesToTheHostComeWhenTheyAreWaitedFor) {
  const at::Tensor x = there(at::full({4}, 3.0)), host = pinned({4});
  host.fill_(0);
  c10::Event done(at::kCUDA);
  {
    const c10::StreamGuard on(another_stream());
    host.copy_(x, /*non_blocking=*/true);
    done.record(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(gpu_device()));
  }
  x.add(1);  // another stream works on
  EXPECT_EQ(host[0].item<float>(), 0);
  EXPECT_FALSE(done.query());
  EXPECT_TRUE(done.query());
  EXPECT_EQ(host[0].item<float>(), 3);
}

TEST(Emulation, CopiesToTheDeviceComeWhenItsStreamWaits) {
  const at::Tensor host = pinned({4});
  host.fill_(1);
  const at::Tensor x = at::empty({4}, at::TensorOptions(gpu_device()));
  c10::Event done(at::kCUDA);
  {
    const c10::StreamGuard on(another_stream());
    x.copy_(host, /*non_blocking=*/true);
    done.record(compute_stream());
  }
  host.fill_(2);  // the copy has not been made: it takes this
  EXPECT_TRUE(x.isnan().all().item<bool>());
  done.block(compute_stream());
  EXPECT_EQ(x.sum().item<float>(), 8);
}

TEST(Emulation, AStreamKeepsItsOrder) {
  const at::Tensor host = pinned({4}), x = at::empty({4}, at::TensorOptions(gpu_device()));
  host.fill_(5);
  x.copy_(host, /*non_blocking=*/true);
  EXPECT_EQ(x.add(1).sum().item<float>(), 24) << "the kernel is behind the copy on the same stream";
}

TEST(Emulation, MemoryGivenBackUnderACopyIsTold) {
  for (const bool recorded : {false, true}) {
    const c10::Stream stream = another_stream();
    std::optional<at::Tensor> x = there(at::ones({4}));
    const at::Tensor host = pinned({4});
    {
      const c10::StreamGuard on(stream);
      host.copy_(*x, /*non_blocking=*/true);
    }
    if (recorded) x->record_stream(stream);
    x.reset();
    EXPECT_EQ(refusal([&] { stream.synchronize(); }).find("memory was given back") != std::string::npos, !recorded);
  }
}

TEST(Emulation, MemoryIsCountedAndEnds) {
  c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(at::kCUDA);
  const auto live = [&] { return allocator.getDeviceStats(0).allocated_bytes[0].current; };
  const int64_t before = live();
  std::optional<at::Tensor> x = at::empty({1000}, at::TensorOptions(gpu_device()));
  EXPECT_EQ(live() - before, 4096);
  const size_t free = allocator.getMemoryInfo(0).first;
  EXPECT_THAT(refusal([&] { at::empty({static_cast<int64_t>(free)}, at::TensorOptions(gpu_device())); }),
              HasSubstr("out of memory"));
  x.reset();
  EXPECT_EQ(live(), before);
}

TEST(EmulationDeathTest, TheHostCannotFollowAPointerIntoTheDevice) {
  const at::Tensor x = there(at::ones({4}));
  const volatile float* values = x.data_ptr<float>();
  EXPECT_DEATH({ [[maybe_unused]] const float value = values[0]; }, "by its pointer");
}

// In place of those that liblockstep_runtime.so has for builds without CUDA.
TEST(Emulation, TheKernelsAreOurs) {
  Dl_info info{};
  const auto address = reinterpret_cast<void*>(&nn::cuda::square_sum);
  ASSERT_NE(dladdr(address, &info), 0);
  EXPECT_THAT(info.dli_fname, HasSubstr("libemulated_gpu"));
}

}  // namespace
}  // namespace lockstep::testing
