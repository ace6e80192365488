// What is offloaded, as the host sees it while copies are on their way.
#include "lockstep/engine/host_states.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "lockstep/base/error.h"
#include "lockstep/engine/test_offload.h"

namespace lockstep::engine {
namespace {

HostStates states_of_two(bool compute_copy) {
  return {testing::two_units(32), {.slots = testing::slots_of_two(arch::optimizer_spec(), 32), .compute_copies = {compute_copy, compute_copy}}};
}

bool all(const at::Tensor& values, float number) { return values.equal(at::full({values.numel()}, number, at::kFloat)); }

// Nobody else waits on the host for a copy that a device's stream is ordered behind: what writes the values does.
TEST(HostStates, ValuesThatACopyReadsAreNotGivenToTheHostBeforeItHas) {
  HostStates states = states_of_two(true);
  std::promise<void> go;
  CopyQueue queue(std::chrono::milliseconds(20));
  states.read_by(1, queue.start("parameters of blocks.0 to the device", 1, [gate = go.get_future().share()] { gate.wait(); }));
  EXPECT_THROW(states.value(1), EnvironmentError);
  EXPECT_THROW(states.compute(1), EnvironmentError);
  EXPECT_EQ(states.fetched_from(1).scalar_type(), at::kBFloat16);  // another copy may read them too
  EXPECT_TRUE(all(states.slot(1, 0), 0));
  EXPECT_TRUE(all(states.value(0), 0));
  go.set_value();
}

TEST(HostStates, ValuesAreThereOnceTheCopyHasReadThem) {
  HostStates states = states_of_two(false);
  CopyQueue queue;
  std::atomic<bool> read{false};
  states.read_by(0, queue.start("parameters of embed to the device", 1, [&] { read = true; }));
  EXPECT_TRUE(all(states.value(0), 0));
  EXPECT_TRUE(read);
}

}  // namespace
}  // namespace lockstep::engine
