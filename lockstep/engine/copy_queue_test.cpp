#include "lockstep/engine/copy_queue.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "lockstep/base/error.h"

namespace lockstep::engine {
namespace {

TEST(CopyQueue, CopiesInOrderAndCountsThem) {
  CopyQueue queue;
  const at::Tensor first = at::arange(1000, at::kFloat), second = at::zeros({1000}), third = at::empty({1000}, at::kBFloat16);
  queue.copy(first, second, "there");
  Copy last = queue.copy(second, third, "rounded");  // reads what the first has written
  last.wait();
  last.wait();
  EXPECT_TRUE(second.equal(first));
  EXPECT_TRUE(third.equal(first.to(at::kBFloat16)));
  const CopyTotals totals = queue.take_totals();
  EXPECT_EQ(totals.copies, 2);
  EXPECT_EQ(totals.bytes, 4000 + 2000);
  EXPECT_EQ(queue.take_totals().copies, 0);
  EXPECT_GE(totals.hidden(), 0.0);
  EXPECT_LE(totals.hidden(), 1.0);
  Copy().wait();  // none
}

TEST(CopyQueue, ThrowsWhatACopyThrewAndBeginsNoOther) {
  CopyQueue queue;
  Copy failing = queue.start("a", 1, [] { throw OutOfMemoryError({.code = "LS4011", .what = "full"}); });
  EXPECT_THROW(failing.wait(), OutOfMemoryError);
  bool ran = false;
  EXPECT_THROW(queue.start("b", 1, [&] { ran = true; }), OutOfMemoryError);
  EXPECT_THROW(queue.wait(), OutOfMemoryError);
  EXPECT_FALSE(ran);
}

TEST(CopyQueue, NamesWhatHangsPastTheDeadline) {
  std::promise<void> go;
  {
    CopyQueue queue(std::chrono::milliseconds(20));
    Copy copy = queue.start("blocks.3 to disk", 1, [gate = go.get_future().share()] { gate.wait(); });
    try {
      copy.wait();
      FAIL() << "it does not end";
    } catch (const EnvironmentError& error) {
      EXPECT_EQ(error.message().code, "LS4014");
      EXPECT_NE(error.message().what.find("blocks.3 to disk"), std::string::npos) << error.message().what;
    }
  }  // the queue leaves although its copy hangs
  go.set_value();
}

// Between host memories there is no stream to put in order: the host waits, and hears what went wrong.
TEST(CopyQueue, OrderAfterWaitsWhereNoSideIsADevice) {
  CopyQueue queue;
  const at::Tensor first = at::arange(1000, at::kFloat), second = at::zeros({1000});
  Copy copy = queue.copy(first, second, "there");
  copy.order_after();
  EXPECT_TRUE(second.equal(first));
  copy.order_after();
  Copy failing = queue.start("a", 1, [] { throw OutOfMemoryError({.code = "LS4011", .what = "full"}); });
  EXPECT_THROW(failing.order_after(), OutOfMemoryError);
}

TEST(CopyQueue, OrderAfterHasADeadline) {
  std::promise<void> go;
  CopyQueue queue(std::chrono::milliseconds(20));
  Copy copy = queue.start("blocks.3 to disk", 1, [gate = go.get_future().share()] { gate.wait(); });
  EXPECT_THROW(copy.order_after(), EnvironmentError);
  go.set_value();
}

// Neither tensors nor copies outlive the queue, whatever was still to do.
TEST(CopyQueue, LeavesNothingBehind) {
  const auto held = std::make_shared<int>(1);
  {
    CopyQueue queue;
    std::promise<void> go;
    const std::shared_future<void> gate = go.get_future().share();
    queue.start("a", 1, [gate, held] { gate.wait(); });
    for (int i = 0; i < 5; ++i) queue.start("b", 1, [held] {});
    go.set_value();
  }
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace lockstep::engine
