// The collectives on a device over shared memory, ranks as threads that share it: every tensor goes through the host.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/comm/test_collectives.h"
#include "lockstep/comm/test_in_flight.h"
#include "lockstep/comm/test_unequal_parts.h"
#include "support/run_ranks.h"

namespace lockstep::comm {

TensorsOfCalls tensors_of_calls() { return {.device = {at::kCUDA, 0}, .largest = 20011}; }
void run_ranks(int n, const std::function<void(World&)>& body) { testing::run_ranks(n, body); }

namespace {

at::TensorOptions there() { return at::TensorOptions(at::kFloat).device(tensors_of_calls().device); }

// Kernels and copies that the host has not waited for come before the call, whatever stream the caller uses; what it puts
// there after wait() sees the result.
TEST(Staging, StandsInTheOrderOfTheCallersStream) {
  constexpr int n = 3;
  constexpr int64_t kNumel = 100003;
  run_ranks(n, [](World& world) {
    const auto group = world.communicator(all_ranks(n), "world");
    const c10::impl::VirtualGuardImpl device(at::kCUDA);
    for (const bool own_stream : {false, true})
      for (const bool blocking : {false, true}) {
        const c10::StreamGuard on(own_stream ? device.getStreamFromGlobalPool(tensors_of_calls().device)
                                             : device.getStream(tensors_of_calls().device));
        const at::Tensor pinned =
            at::full({kNumel}, static_cast<float>(world.rank()), at::TensorOptions(at::kFloat).pinned_memory(true));
        const at::Tensor tensor = at::zeros({kNumel}, there());
        tensor.copy_(pinned, /*non_blocking=*/true);
        for (int i = 0; i < 20; ++i) tensor.add_(1);
        group->all_reduce(tensor, {.id = program::named_call("order"), .blocking = blocking}).wait();
        tensor.mul_(2);
        expect(
            tensor, [](int64_t) { return 2.0 * (0 + 1 + 2 + 20 * n); }, "order");
      }
  });
}

// A buffer that is only written may still be read by what the stream holds.
TEST(Staging, AReceivedTensorDoesNotOvertakeItsReaders) {
  constexpr int64_t kNumel = 100003;
  run_ranks(2, [](World& world) {
    const auto group = world.communicator({0, 1}, "world");
    const at::Tensor buffer = at::full({kNumel}, 7, there()), before = at::zeros({kNumel}, there());
    for (int i = 0; i < 20; ++i) before.add_(buffer);
    if (world.rank() == 0)
      group->send(buffer, 1, {.id = program::named_call("buffer")}).wait();
    else
      group->recv(buffer.fill_(1), 0, {.id = program::named_call("buffer")}).wait();
    expect(
        before, [](int64_t) { return 140.0; }, "read before");
    expect(
        buffer, [](int64_t) { return 7.0; }, "received");
  });
}

// Slices of one buffer in flight at once, in two groups; whoever drops a Work lets its call end.
TEST(Staging, ViewsInFlight) {
  constexpr int n = 2;
  constexpr int64_t kPart = 5003;
  run_ranks(n, [](World& world) {
    const auto first = world.communicator(all_ranks(n), "first"), second = world.communicator(all_ranks(n), "second");
    const at::Tensor buffer = floats(10 * kPart, [&](int64_t i) { return value(world.rank(), i); });
    std::vector<Work> works;
    for (int64_t part = 0; part < 10; ++part) {
      Communicator& group = part % 2 ? *second : *first;
      works.push_back(group.all_reduce(buffer.narrow(0, part * kPart, kPart), {.id = program::named_call(cat("part ", part))}));
    }
    for (Work& work : works) work.wait();
    expect(
        buffer, [](int64_t i) { return sum_of(n, i); }, "views");
    first->all_reduce(room(kPart), {.id = program::named_call("dropped")});
  });
}

}  // namespace
}  // namespace lockstep::comm
