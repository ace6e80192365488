// Layouts of a model with experts, and the one-rank twin of each; for the tests of this room.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/engine/expert_loads.h"
#include "lockstep/engine/test_training.h"
#include "lockstep/engine/test_values.h"

namespace lockstep::engine::testing {

inline constexpr int64_t kExpertBatch = 8;  // sequences of a step

// Both losses are on: their scale must not follow the layout.
inline config::MoeSection balanced() { return {.aux_coefficient = 0.02, .z_coefficient = 0.003}; }

inline Case experts(Case c) {
  c.preset = "mixtral-test";
  c.micro_batch = 1;
  if (c.moe == config::MoeSection()) c.moe = balanced();
  return c;
}

inline Case twin_of(const Case& c) {
  return {.preset = c.preset,
          .dp = 1,
          .precision = c.precision,
          .micro_batch = kExpertBatch,
          .seq_len = c.seq_len,
          .dropout = c.dropout,
          .blocks = c.blocks,
          .optimizer = c.optimizer,
          .ns_precision = c.ns_precision,
          .moe = c.moe,
          .router = c.router,
          .shared_experts = c.shared_experts};
}

inline std::string text_of(const Case& c) {
  return cat("dp ", c.dp, " (", c.dp_replicate, ") tp ", c.tp, c.sequence_parallel ? " sequence parallel" : "", " pp ", c.pp, " ep ", c.ep,
             " etp ", c.etp, " zero ", c.zero, c.overlap ? "" : " no overlap", c.row_groups ? " row groups" : "");
}

// Routers prefer the experts of the first ep rank by so much. With [moe] balance "bias".
inline void prefer_first_rank(Executor& executor, double shift) {
  const program::Layout& layout = executor.layout();
  for (StateTensor& tensor : executor.store().state())
    if (tensor.name.ends_with(".experts.router.bias")) {
      const int64_t preferred = layout.model.experts.count / layout.ep - tensor.offset[0];  // of a part of it
      tensor.local.zero_().narrow(0, 0, std::clamp<int64_t>(preferred, 0, tensor.local.size(0))).fill_(shift);
    }
  executor.store().loaded();
}

// What layers with experts tell: assignments are whole numbers, the same in every layout.
inline void expect_same_loads(const program::Layout& layout, const StepResult& actual, const StepResult& expected, double bound) {
  const std::vector<ExpertLoad> found = expert_loads(layout, actual.loads), wanted = expert_loads(layout, expected.loads);
  ASSERT_EQ(found.size(), wanted.size());
  EXPECT_FALSE(wanted.empty());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::vector<double> counts(found[i].routed.begin(), found[i].routed.end());
    EXPECT_EQ(counts, std::vector<double>(wanted[i].routed.begin(), wanted[i].routed.end())) << wanted[i].name;
    EXPECT_EQ(found[i].dropped, wanted[i].dropped) << wanted[i].name;
    EXPECT_GT(wanted[i].total(), 0) << wanted[i].name;
    EXPECT_NEAR(found[i].aux_sum, wanted[i].aux_sum, bound * wanted[i].aux_sum) << wanted[i].name;
    EXPECT_NEAR(found[i].z_sum, wanted[i].z_sum, bound * wanted[i].z_sum) << wanted[i].name;
  }
  EXPECT_NEAR(actual.aux_loss, expected.aux_loss, bound * expected.aux_loss);
  EXPECT_NEAR(actual.z_loss, expected.z_loss, bound * expected.z_loss);
}

inline void expect_same_step(const program::Layout& layout, const Outcome& actual, const Outcome& expected, double bound) {
  ASSERT_EQ(actual.steps.size(), 1u);
  const StepResult &step = actual.steps[0], &reference = expected.steps[0];
  EXPECT_EQ(step.tokens, reference.tokens);
  EXPECT_NEAR(step.loss, reference.loss, bound * reference.loss);
  EXPECT_NEAR(step.grad_norm, reference.grad_norm, bound * reference.grad_norm);
  expect_same_loads(layout, step, reference, bound);
  expect_same_gradients(actual.gradients, expected.gradients, bound);
  expect_same_values(actual.values, expected.values, expected.gradients, {.gradient_bound = bound});
  EXPECT_TRUE(actual.copies_agree);
}

// Made once for all layouts of a model.
inline const Outcome& trained_twin(const Case& c) {
  static std::map<std::string, Outcome> known;
  const config::MoeSection& moe = c.moe;
  const std::string key = cat(config::name_of(c.precision), " ", c.seq_len, " ", c.dropout, " ", c.blocks, " ",
                              c.router ? config::name_of(*c.router) : "", " ", c.shared_experts.value_or(-1), " ",
                              moe.capacity_factor.value_or(-1), " ", config::name_of(moe.drop), " ", config::name_of(moe.balance), " ",
                              config::name_of(moe.scope), " ",
                              moe.aux_coefficient, " ", moe.z_coefficient);
  const auto [twin, fresh] = known.try_emplace(key);
  if (fresh) twin->second = train_layout(layout_for(twin_of(c), kExpertBatch), {});
  return twin->second;
}

// A step of the layout against one of one rank that has all experts.
inline void expect_twin(const Case& c, const program::Layout& layout, const TrainingOptions& options = {}, double bound = 1e-5) {
  SCOPED_TRACE(text_of(c));
  expect_same_step(layout, train_layout(layout, options), trained_twin(c), bound);
}

inline void expect_twin(const Case& c) { expect_twin(c, layout_for(c, kExpertBatch)); }

}  // namespace lockstep::engine::testing
