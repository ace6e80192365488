// What runs while rows of experts travel: half of the shared expert beside each exchange, with every dispatcher, whole and in parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/nn/divided_pass.h"
#include "lockstep/nn/experts.h"
#include "lockstep/parallel/expert/exchange.h"
#include "support/run_ranks.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using ::testing::ElementsAre;
using lockstep::testing::parameter;
using lockstep::testing::random;
using nn::ExchangePhase;

constexpr int64_t kExperts = 4, kModel = 6, kInner = 8, kShared = 3, kBatch = 2, kSeq = 5;

using Log = std::vector<std::string>;

// Writes down when an exchange begins, and when its result is asked for.
class WatchedExchange : public ShardedExchange {
 public:
  WatchedExchange(ExpertGroup& group, Log& log) : ShardedExchange(&group, nullptr, nullptr, program::named_call("block"), "experts"), log_(log) {}

  nn::Pending dispatch(const at::Tensor& sorted, const Plan& plan, ExchangePhase phase) override {
    return watched("dispatch", phase, ShardedExchange::dispatch(sorted, plan, phase));
  }
  nn::Pending combine(const at::Tensor& here, const Plan& plan, ExchangePhase phase) override {
    return watched("combine", phase, ShardedExchange::combine(here, plan, phase));
  }
  nn::Pending spread(const at::Tensor& own, const Plan& plan, ExchangePhase phase) override {
    return watched("dispatch", phase, ShardedExchange::spread(own, plan, phase));
  }
  nn::Pending collect(const at::Tensor& sums, const Plan& plan, ExchangePhase phase) override {
    return watched("combine", phase, ShardedExchange::collect(sums, plan, phase));
  }

 private:
  nn::Pending watched(const char* what, ExchangePhase phase, nn::Pending pending) {
    const std::string name = cat(what, phase == ExchangePhase::kForward ? " F" : " B");
    log_.push_back("start " + name);
    return [this, name, pending = std::move(pending)] {
      log_.push_back("join " + name);
      return pending();
    };
  }
  Log& log_;
};

class WatchedLinear : public nn::Linear {
 public:
  WatchedLinear(nn::Parameter weight, std::string name, Log& log) : Linear(std::move(weight)), name_(std::move(name)), log_(log) {}
  at::Tensor forward(const at::Tensor& x, Saved* saved) override {
    log_.push_back(name_ + " F");
    return Linear::forward(x, saved);
  }
  nn::Pending start_backward_input(const at::Tensor& dy, Saved& saved) override {
    log_.push_back(name_ + " B");
    return Linear::start_backward_input(dy, saved);
  }

 private:
  const std::string name_;
  Log& log_;
};

struct Layer {
  Log log;
  nn::Experts experts;

  explicit Layer(ExpertGroup& group) : experts(shape(), parameters(group), shared(log), std::make_shared<WatchedExchange>(group, log)) {}

  static nn::ExpertShape shape() {
    nn::ExpertShape result;
    result.sizes.count = kExperts;
    result.sizes.per_token = 2;
    result.sizes.ffn = kInner;
    result.moe.balance = config::Balance::kNone;
    return result;
  }
  static nn::ExpertParameters parameters(const ExpertGroup& group) {
    const int64_t here = group.experts_here(kExperts).size();
    return {.router_weight = parameter("router", {kExperts, kModel}),
            .router_bias = {},
            .gate_up = parameter("gate_up", {here * 2 * kInner, kModel}),
            .down = parameter("down", {here * kModel, kInner})};
  }
  static std::unique_ptr<nn::Mlp> shared(Log& log) {
    return std::make_unique<nn::Mlp>(std::make_unique<WatchedLinear>(parameter("shared_up", {2 * kShared, kModel}), "up", log),
                                     std::make_unique<nn::SwiGlu>(),
                                     std::make_unique<WatchedLinear>(parameter("shared_down", {kModel, kShared}), "down", log));
  }
  Log take() { return std::exchange(log, {}); }
};

// The two halves of a pass, each with what is before and behind it; and how many such exchanges begin before the first, after the second.
struct Halves {
  Log first, second;
  int64_t earlier = 0, later = 0;
};
Halves halves_of(const Log& log, const std::string& first, const std::string& second, const std::string& pass) {
  EXPECT_EQ(std::ranges::count(log, first), 1);
  EXPECT_EQ(std::ranges::count(log, second), 1);
  const auto around = [&](const std::string& what) {
    const auto at = std::ranges::find(log, what);
    if (at == log.begin() || log.end() - at < 2) return Log();
    return Log(at - 1, at + 2);
  };
  return {.first = around(first),
          .second = around(second),
          .earlier = std::count(log.begin(), std::ranges::find(log, first), "start dispatch " + pass),
          .later = std::count(std::ranges::find(log, second), log.end(), "start combine " + pass)};
}

void expect_beside(const Log& log, const std::string& pass) {
  const bool forward = pass == "F";
  const std::string first = cat(forward ? "up " : "down ", pass), second = cat(forward ? "down " : "up ", pass);
  const Halves halves = halves_of(log, first, second, pass);
  EXPECT_THAT(halves.first, ElementsAre("start dispatch " + pass, first, "join dispatch " + pass));
  EXPECT_THAT(halves.second, ElementsAre("start combine " + pass, second, "join combine " + pass));
  EXPECT_EQ(halves.earlier, 1) << "beside the first dispatch";
  EXPECT_EQ(halves.later, 0) << "beside the last combine";
}

// Each rank has rows of its own.
void check_passes(ExpertGroup& group) {
  Layer layer(group);
  nn::Experts& experts = layer.experts;
  const at::Tensor x = random(cat("x", group.rank()), {kBatch, kSeq, kModel}), dy = random(cat("dy", group.rank()), {kBatch, kSeq, kModel});
  experts.forward(x, nullptr);
  expect_beside(layer.take(), "F");
  for (const bool whole : {true, false}) {
    const auto saved = experts.new_saved();
    experts.forward(x, saved.get());
    expect_beside(layer.take(), "F");
    nn::Pending dx;
    if (whole) {
      dx = experts.start_backward_input(dy, *saved);
      experts.backward_weight(*saved);
      dx();
    } else {
      experts.backward_input(dy, *saved);
    }
    expect_beside(layer.take(), "B");
    if (!whole) experts.backward_weight(*saved);
    layer.take();
  }
}

TEST(SharedExpert, RunsBesideBothExchanges) {
  using config::Dispatcher;
  const DispatchOptions ways[] = {{},
                                  {.limit = 7},
                                  {.slots = 10},
                                  {.dispatcher = Dispatcher::kAllGather},
                                  {.dispatcher = Dispatcher::kAllGather, .limit = 9},
                                  {.dispatcher = Dispatcher::kHierarchical},
                                  {.dispatcher = Dispatcher::kHierarchical, .limit = 9}};
  for (const DispatchOptions& way : ways) {
    SCOPED_TRACE(cat("dispatcher ", static_cast<int>(way.dispatcher), " limit ", way.limit, " slots ", way.slots));
    lockstep::testing::run_ranks(4, [&](comm::World& world) {
      const auto communicator = world.all_ranks("ep");
      const int rank = world.rank();
      const auto nodes = world.communicator({rank % 2, rank % 2 + 2}, "ep_nodes");
      const auto node = world.communicator({rank / 2 * 2, rank / 2 * 2 + 1}, "ep_node");
      DispatchOptions options = way;
      options.nodes = nodes.get();
      options.node = node.get();
      ExpertGroup group(*communicator, 4, 1, options);
      check_passes(group);
    });
  }
}

// The parts of a divided pass wait for what comes behind their half, not in front of it.
TEST(SharedExpert, RunsBesideBothExchangesOfADividedPass) {
  lockstep::testing::run_ranks(2, [&](comm::World& world) {
    const auto communicator = world.all_ranks("ep");
    ExpertGroup group(*communicator, 2, 1);
    Layer layer(group);
    const auto run = [&](nn::DividedPass& pass) {
      pass.leave();
      pass.arrive();
      pass.run_experts();
      pass.leave();
      pass.arrive();
      pass.finish();
      return layer.take();
    };
    const auto saved = layer.experts.new_saved();
    const nn::Sequences sequences{.count = kBatch, .length = kSeq, .valid = {}};
    expect_beside(run(*layer.experts.begin_forward(random("x", {kBatch, kSeq, kModel}), saved.get(), sequences)), "F");
    expect_beside(run(*layer.experts.begin_backward_input(random("dy", {kBatch, kSeq, kModel}), *saved)), "B");
  });
}

}  // namespace
}  // namespace lockstep::parallel
