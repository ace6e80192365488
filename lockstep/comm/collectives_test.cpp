// The collectives over shared memory, ranks as threads.
// A program of its own: it gives test_collectives.h its ranks and tensors.
#include "lockstep/comm/test_collectives.h"
#include "lockstep/comm/test_in_flight.h"
#include "lockstep/comm/test_unequal_parts.h"
#include "support/run_ranks.h"

namespace lockstep::comm {

TensorsOfCalls tensors_of_calls() { return {}; }
void run_ranks(int n, const std::function<void(World&)>& body) {
  testing::run_ranks(n, body);
}

namespace {

TEST(Blocking, CallsAreDoneAndExposed) {
  run_ranks(2, [](World& world) {
    const auto group = world.communicator({0, 1}, "tp");
    const at::Tensor tensor = floats(1000, [&](int64_t i) { return value(world.rank(), i); });
    group->all_reduce(tensor, {.id = program::named_call("queued")});  // runs first
    Work work = group->all_reduce(tensor, {.id = program::named_call("blocking"), .algorithm = Algorithm::kExchange, .blocking = true});
    EXPECT_TRUE(work.done());
    EXPECT_GT(work.exposed_seconds(), 0);
    expect(
        tensor, [](int64_t i) { return 2 * sum_of(2, i); }, "blocking");
  });
}

}  // namespace

}  // namespace lockstep::comm
