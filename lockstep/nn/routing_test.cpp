// Choice, capacity and order against the shortest program that says them, in random cases.
#include "lockstep/nn/routing.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/nn/router.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using config::Drop;
using config::Router;

struct Case {
  RoutingRules rules;
  int64_t sequences = 1, length = 1;
  at::Tensor logits;
  at::Tensor bias;
  int64_t rows() const { return sequences * length; }
};

// Few distinct values, so that there are ties in nearly every row.
at::Tensor coarse(std::mt19937& random, int64_t rows, int64_t columns) {
  at::Tensor values = at::empty({rows, columns}, at::kFloat);
  const int levels = std::uniform_int_distribution(1, 12)(random);
  for (int64_t i = 0; i < values.numel(); ++i)
    values.data_ptr<float>()[i] = 0.5f * static_cast<float>(std::uniform_int_distribution(-levels, levels)(random));
  return values;
}

Case random_case(std::mt19937& random) {
  const auto among = [&](int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random); };
  Case c;
  c.rules.groups = among(0, 1) ? 1 : among(1, 4);
  c.rules.experts = c.rules.groups * among(1, 6);
  c.rules.top_groups = among(1, c.rules.groups);
  c.rules.per_token = among(1, c.rules.experts / c.rules.groups * c.rules.top_groups);
  c.rules.router = static_cast<Router>(among(0, 2));
  c.rules.routed_scale = among(0, 1) ? 1 : 2.5;
  c.rules.drop = static_cast<Drop>(among(0, 1));
  constexpr double kFactors[] = {0.25, 0.5, 1, 1.25, 2};
  if (among(0, 1)) c.rules.capacity_factor = kFactors[among(0, 4)];
  c.sequences = among(1, 3);
  c.length = among(1, 9);
  c.logits = coarse(random, c.rows(), c.rules.experts);
  if (among(0, 1)) c.bias = coarse(random, 1, c.rules.experts).view({-1});
  return c;
}

float score_of(const at::Tensor& scores, int64_t row, int64_t expert) {
  return scores.const_data_ptr<float>()[row * scores.size(1) + expert];
}

// The experts of a row by sorting all of them.
std::vector<int64_t> sorted_choice(const Case& c, const at::Tensor& scores, int64_t row) {
  const int64_t size = c.rules.experts / c.rules.groups;
  std::vector<float> selection;
  for (int64_t e = 0; e < c.rules.experts; ++e)
    selection.push_back(score_of(scores, row, e) + (c.bias.defined() ? c.bias.const_data_ptr<float>()[e] : 0.0f));
  std::vector<std::pair<float, int64_t>> groups;  // by -score, then index
  for (int64_t g = 0; g < c.rules.groups; ++g) {
    std::vector<float> in_group(selection.begin() + g * size, selection.begin() + (g + 1) * size);
    std::sort(in_group.rbegin(), in_group.rend());
    groups.push_back({-(in_group[0] + (size > 1 ? in_group[1] : 0.0f)), g});
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<float, int64_t>> experts;
  for (int64_t i = 0; i < c.rules.top_groups; ++i) {
    const int64_t g = groups[static_cast<size_t>(i)].second;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) experts.push_back({-selection[static_cast<size_t>(e)], e});
  }
  std::sort(experts.begin(), experts.end());
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < c.rules.per_token; ++i) chosen.push_back(experts[static_cast<size_t>(i)].second);
  return chosen;
}

double weight_of(const Case& c, const at::Tensor& scores, int64_t row, int64_t expert, const std::vector<int64_t>& chosen) {
  const double score = score_of(scores, row, expert);
  double sum = 0;
  if (c.rules.router == Router::kSoftmax) return c.rules.routed_scale * score;
  for (const int64_t e : chosen) {
    const double of_e = score_of(scores, row, e);
    sum += c.rules.router == Router::kSigmoid ? of_e : std::exp(of_e - score);
  }
  return c.rules.routed_scale * (c.rules.router == Router::kSigmoid ? score / (sum + 1e-20) : 1 / sum);
}

// How many of the sequence's assignments to the same expert are ahead of `a`.
int64_t ahead(const std::vector<Assignment>& all, const Assignment& a, const Case& c) {
  return std::count_if(all.begin(), all.end(), [&](const Assignment& b) {
    if (b.expert != a.expert || b.row / c.length != a.row / c.length || b.row == a.row) return false;
    if (c.rules.drop == Drop::kPosition || b.weight == a.weight) return b.row < a.row;
    return b.weight > a.weight;
  });
}

void expect_sorted(const std::vector<Assignment>& all, const Case& c, mesh::Range own) {
  const Routing routing = sort_by_expert(all, own, c.rules.experts);
  std::vector<Assignment> mine, sent;
  for (Assignment a : all) {
    if (a.row < own.begin || a.row >= own.end) continue;
    a.row -= own.begin;
    mine.push_back(a);
    if (a.kept) sent.push_back(a);
  }
  std::stable_sort(sent.begin(), sent.end(), [](const Assignment& a, const Assignment& b) {
    return std::pair(a.expert, a.row) < std::pair(b.expert, b.row);
  });
  EXPECT_EQ(routing.assignments, mine);
  ASSERT_EQ(routing.sent_rows(), std::ssize(sent));
  EXPECT_EQ(routing.dropped(), std::ssize(mine) - std::ssize(sent));
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(routing.rows[i], sent[i].row);
    EXPECT_EQ(routing.weights[i], sent[i].weight);
    EXPECT_EQ(routing.assignments[static_cast<size_t>(routing.slots[i])], sent[i]);
  }
  for (int64_t e = 0; e < c.rules.experts; ++e) {
    const auto is_e = [e](const Assignment& a) { return a.expert == e; };
    EXPECT_EQ(routing.counts[static_cast<size_t>(e)], std::count_if(sent.begin(), sent.end(), is_e));
    EXPECT_EQ(routing.routed[static_cast<size_t>(e)], std::count_if(mine.begin(), mine.end(), is_e));
  }
  ASSERT_EQ(routing.own_rows(), own.size());
  for (int64_t t = 0; t < own.size(); ++t) {
    const auto begin = routing.sent.begin() + routing.first[static_cast<size_t>(t)];
    const auto end = routing.sent.begin() + routing.first[static_cast<size_t>(t) + 1];
    EXPECT_TRUE(std::is_sorted(begin, end));
    for (auto place = begin; place != end; ++place) EXPECT_EQ(routing.rows[static_cast<size_t>(*place)], t);
  }
  EXPECT_EQ(routing.first.back(), routing.sent_rows());
}

TEST(Routing, IsThatOfSortingEverything) {
  std::mt19937 random(17);
  for (int i = 0; i < 10000 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(cat("case ", i));
    const Case c = random_case(random);
    const at::Tensor scores = router_scores(c.logits, c.rules.router);
    std::vector<Assignment> all = choose_experts(scores, c.bias, c.rules);
    ASSERT_EQ(std::ssize(all), c.rows() * c.rules.per_token);
    for (int64_t row = 0; row < c.rows(); ++row) {
      const std::vector<int64_t> chosen = sorted_choice(c, scores, row);
      for (size_t j = 0; j < chosen.size(); ++j) {
        const Assignment& a = all[static_cast<size_t>(row * c.rules.per_token) + j];
        EXPECT_EQ(a.row, row);
        EXPECT_EQ(a.expert, chosen[j]);
        EXPECT_TRUE(a.kept);
        EXPECT_NEAR(a.weight, weight_of(c, scores, row, a.expert, chosen), 1e-5);
      }
    }
    if (c.rules.capacity_factor) {
      drop_beyond_capacity(all, c.rules, c.length);
      const int64_t room = expert_capacity(*c.rules.capacity_factor, c.rules, c.length);
      for (const Assignment& a : all) EXPECT_EQ(a.kept, ahead(all, a, c) < room);
    }
    const int64_t half = c.rows() / 2;
    expect_sorted(all, c, {.begin = 0, .end = c.rows()});
    expect_sorted(all, c, {.begin = half, .end = c.rows()});
    expect_sorted(all, c, {.begin = half, .end = half});
  }
}

// Of the m assignments of a sequence an expert keeps the best that bring it from its last load to the capacity: m room / load, rounded up.
TEST(Routing, TheLastLoadSaysWhatShareIsKept) {
  std::mt19937 random(29);
  for (int i = 0; i < 10000 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(cat("case ", i));
    Case c = random_case(random);
    if (!c.rules.capacity_factor) c.rules.capacity_factor = 0.75;
    std::vector<double> last;
    for (int64_t e = 0; e < c.rules.experts; ++e) last.push_back(std::uniform_int_distribution(0, 20)(random));
    double sum = 0;
    for (const double load : last) sum += load;
    const double room = *c.rules.capacity_factor * sum / static_cast<double>(c.rules.experts);
    std::vector<Assignment> all = choose_experts(router_scores(c.logits, c.rules.router), c.bias, c.rules);
    drop_beyond_last_load(all, c.rules, c.length, last);
    for (const Assignment& a : all) {
      const auto of_same = [&](const Assignment& b) { return b.expert == a.expert && b.row / c.length == a.row / c.length; };
      const int64_t assigned = std::count_if(all.begin(), all.end(), of_same);
      const int64_t kept = std::count_if(all.begin(), all.end(), [&](const Assignment& b) { return of_same(b) && b.kept; });
      const double load = last[static_cast<size_t>(a.expert)];
      if (load <= room * (1 - 1e-9)) {
        EXPECT_EQ(kept, assigned);
      }
      if (load > room * (1 + 1e-9)) {
        EXPECT_GE(static_cast<double>(kept) * load, static_cast<double>(assigned) * room * (1 - 1e-9));
        EXPECT_LT(static_cast<double>(kept - 1) * load, static_cast<double>(assigned) * room * (1 + 1e-9));
      }
      EXPECT_EQ(a.kept, ahead(all, a, c) < kept);
    }
  }
}

TEST(Routing, ExpertsChooseTheirBestTokens) {
  std::mt19937 random(18);
  for (int i = 0; i < 1000 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(cat("case ", i));
    Case c = random_case(random);
    c.rules.router = Router::kExpertChoice;
    const at::Tensor scores = router_scores(c.logits, c.rules.router);
    const int64_t room = expert_capacity(c.rules.capacity_factor.value_or(1), c.rules, c.length);
    std::vector<Assignment> expected;
    for (int64_t row = 0; row < c.rows(); ++row) {
      for (int64_t e = 0; e < c.rules.experts; ++e) {
        const float mine = score_of(scores, row, e);
        int64_t better = 0;
        for (int64_t other = row / c.length * c.length; other < (row / c.length + 1) * c.length; ++other) {
          const float theirs = score_of(scores, other, e);
          if (theirs > mine || (theirs == mine && other < row)) ++better;
        }
        if (better < room)
          expected.push_back({.row = row, .expert = e, .weight = static_cast<float>(c.rules.routed_scale) * mine});
      }
    }
    EXPECT_EQ(choose_tokens(scores, c.rules, c.length), expected);
  }
}

TEST(Routing, CapacityIsRoundedUpAndAtMostTheSequence) {
  const RoutingRules rules{.experts = 8, .per_token = 2};
  EXPECT_EQ(expert_capacity(1, rules, 16), 4);
  EXPECT_EQ(expert_capacity(1, rules, 17), 5);
  EXPECT_EQ(expert_capacity(0.5, rules, 16), 2);
  EXPECT_EQ(expert_capacity(100, rules, 16), 16);
}

}  // namespace
}  // namespace lockstep::nn
