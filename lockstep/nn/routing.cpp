#include "lockstep/nn/routing.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "lockstep/arch/expert_branch.h"
#include "lockstep/base/check.h"

namespace lockstep::nn {
namespace {

constexpr int64_t kGrain = 16384;  // scores worth a thread

size_t at_index(int64_t i) { return static_cast<size_t>(i); }

// The best few of what is offered in ascending order; of equal ones the first. A NaN displaces nothing and is displaced by nothing.
class Best {
 public:
  Best(int64_t* indices, float* scores, int64_t room) : indices_(indices), scores_(scores), room_(room) {}

  void offer(int64_t index, float score) {
    if (count_ == room_ && !(score > scores_[count_ - 1])) return;
    int64_t place = count_ < room_ ? count_++ : count_ - 1;
    for (; place > 0 && score > scores_[place - 1]; --place) {
      indices_[place] = indices_[place - 1];
      scores_[place] = scores_[place - 1];
    }
    indices_[place] = index;
    scores_[place] = score;
  }

 private:
  int64_t* indices_;
  float* scores_;
  int64_t room_, count_ = 0;
};

// Room for the choice of one row, used again for the next.
struct Scratch {
  explicit Scratch(const RoutingRules& rules)
      : selection(at_index(rules.experts)), groups(at_index(rules.top_groups)), group_scores(at_index(rules.top_groups)),
        chosen(at_index(rules.per_token)), chosen_scores(at_index(rules.per_token)) {}
  std::vector<float> selection;
  std::vector<int64_t> groups;
  std::vector<float> group_scores;
  std::vector<int64_t> chosen;
  std::vector<float> chosen_scores;
};

// The sum of a group's two best scores; of one expert, its score.
float group_score(std::span<const float> scores) {
  int64_t indices[2];
  float best[2] = {0, 0};
  Best two(indices, best, 2);
  for (const float score : scores) two.offer(0, score);
  return best[0] + best[1];
}

// Groups that may be chosen from, ascending.
std::span<const int64_t> choose_groups(const RoutingRules& rules, Scratch& scratch) {
  const int64_t size = rules.experts / rules.groups;
  Best best(scratch.groups.data(), scratch.group_scores.data(), rules.top_groups);
  for (int64_t group = 0; group < rules.groups; ++group)
    best.offer(group, group_score(std::span(scratch.selection).subspan(at_index(group * size), at_index(size))));
  std::sort(scratch.groups.begin(), scratch.groups.end());
  return scratch.groups;
}

// The weights of a row's experts, from their scores without bias.
void weigh(std::span<Assignment> chosen, const float* scores, const RoutingRules& rules) {
  const auto scale = static_cast<float>(rules.routed_scale);
  if (rules.router == config::Router::kSoftmax) {
    for (Assignment& a : chosen) a.weight = scale * scores[a.expert];
    return;
  }
  float sum = 0;
  if (rules.router == config::Router::kSoftmaxAfterTopk) {
    float largest = scores[chosen.front().expert];
    for (const Assignment& a : chosen) largest = std::max(largest, scores[a.expert]);
    for (Assignment& a : chosen) sum += a.weight = std::exp(scores[a.expert] - largest);
  } else {
    for (Assignment& a : chosen) sum += a.weight = scores[a.expert];
    sum += 1e-20f;
  }
  for (Assignment& a : chosen) a.weight = scale * (a.weight / sum);
}

void choose_of_row(const float* scores, const float* bias, const RoutingRules& rules, Scratch& scratch, std::span<Assignment> chosen) {
  for (int64_t e = 0; e < rules.experts; ++e) scratch.selection[at_index(e)] = scores[e] + (bias ? bias[e] : 0.0f);
  Best best(scratch.chosen.data(), scratch.chosen_scores.data(), rules.per_token);
  const int64_t size = rules.experts / rules.groups;
  const auto offer = [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) best.offer(e, scratch.selection[at_index(e)]);
  };
  if (rules.groups == rules.top_groups) {
    offer(0, rules.experts);
  } else {
    for (const int64_t group : choose_groups(rules, scratch)) offer(group * size, (group + 1) * size);
  }
  for (size_t i = 0; i < chosen.size(); ++i) chosen[i].expert = scratch.chosen[i];
  weigh(chosen, scores, rules);
}

// In each sequence an expert keeps room(expert, its assignments) of them, those that `rules.drop` prefers.
template <typename Room>
void drop_beyond(std::span<Assignment> assignments, const RoutingRules& rules, int64_t length, const Room& room) {
  std::vector<std::vector<size_t>> of_expert(at_index(rules.experts));
  for (size_t begin = 0, end = 0; begin < assignments.size(); begin = end) {
    const int64_t sequence = assignments[begin].row / length;
    for (auto& places : of_expert) places.clear();
    for (; end < assignments.size() && assignments[end].row / length == sequence; ++end)
      of_expert[at_index(assignments[end].expert)].push_back(end);
    for (size_t expert = 0; expert < of_expert.size(); ++expert) {
      std::vector<size_t>& places = of_expert[expert];
      const size_t kept = room(expert, places.size());
      if (places.size() <= kept) continue;
      if (rules.drop == config::Drop::kProbability)
        std::stable_sort(places.begin(), places.end(),
                         [&](size_t a, size_t b) { return assignments[a].weight > assignments[b].weight; });
      for (size_t i = kept; i < places.size(); ++i) assignments[places[i]].kept = false;
    }
  }
}

void check_rules(const at::Tensor& scores, const RoutingRules& rules) {
  LOCKSTEP_CHECK(scores.is_cpu() && scores.is_contiguous() && scores.scalar_type() == at::kFloat);
  LOCKSTEP_CHECK_EQ(scores.size(1), rules.experts, "experts");
  LOCKSTEP_CHECK(rules.groups >= 1 && rules.experts % rules.groups == 0, rules.experts, " experts in ", rules.groups, " groups");
  LOCKSTEP_CHECK(rules.top_groups >= 1 && rules.top_groups <= rules.groups, rules.top_groups, " of ", rules.groups, " groups");
  LOCKSTEP_CHECK(rules.per_token >= 1 && rules.per_token <= rules.experts / rules.groups * rules.top_groups, rules.per_token,
                 " experts of ", rules.top_groups, " groups of ", rules.experts / rules.groups);
}

}  // namespace

int64_t expert_capacity(double factor, const RoutingRules& rules, int64_t length) {
  arch::ExpertSizes sizes;
  sizes.count = rules.experts;
  sizes.per_token = rules.per_token;
  return arch::expert_capacity(sizes, factor, length);
}

std::vector<Assignment> choose_experts(const at::Tensor& scores, const at::Tensor& bias, const RoutingRules& rules) {
  check_rules(scores, rules);
  const int64_t rows = scores.size(0), each = rules.per_token;
  std::vector<Assignment> assignments(at_index(rows * each));
  const float* const all = scores.const_data_ptr<float>();
  const float* const added = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / rules.experts), [&](int64_t begin, int64_t end) {
    Scratch scratch(rules);
    for (int64_t row = begin; row < end; ++row) {
      const std::span<Assignment> chosen = std::span(assignments).subspan(at_index(row * each), at_index(each));
      for (Assignment& a : chosen) a.row = row;
      choose_of_row(all + row * rules.experts, added, rules, scratch, chosen);
    }
  });
  return assignments;
}

void drop_beyond_capacity(std::span<Assignment> assignments, const RoutingRules& rules, int64_t length) {
  LOCKSTEP_CHECK(rules.capacity_factor.has_value());
  const size_t room = at_index(expert_capacity(*rules.capacity_factor, rules, length));
  drop_beyond(assignments, rules, length, [room](size_t, size_t) { return room; });
}

void drop_beyond_last_load(std::span<Assignment> assignments, const RoutingRules& rules, int64_t length, std::span<const double> last) {
  LOCKSTEP_CHECK(rules.capacity_factor.has_value());
  LOCKSTEP_CHECK_EQ(std::ssize(last), rules.experts, "loads of experts");
  const double mean = std::accumulate(last.begin(), last.end(), 0.0) / static_cast<double>(rules.experts);
  const double room = *rules.capacity_factor * mean;
  drop_beyond(assignments, rules, length, [&](size_t expert, size_t assigned) {
    if (last[expert] <= room) return assigned;
    return static_cast<size_t>(std::ceil(static_cast<double>(assigned) * room / last[expert]));
  });
}

std::vector<Assignment> choose_tokens(const at::Tensor& scores, const RoutingRules& rules, int64_t length) {
  check_rules(scores, rules);
  LOCKSTEP_CHECK(length >= 1 && scores.size(0) % length == 0, scores.size(0), " rows in sequences of ", length);
  const int64_t rows = scores.size(0), room = expert_capacity(rules.capacity_factor.value_or(1), rules, length);
  const float* const all = scores.const_data_ptr<float>();
  const auto scale = static_cast<float>(rules.routed_scale);
  std::vector<uint8_t> taken(at_index(rows * rules.experts), 0);
  const int64_t sequences = rows / length;
  at::parallel_for(0, sequences * rules.experts, std::max<int64_t>(1, kGrain / length), [&](int64_t begin, int64_t end) {
    std::vector<int64_t> order(at_index(length));
    std::vector<float> column(at_index(length));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i / rules.experts * length, e = i % rules.experts;
      for (int64_t row = 0; row < length; ++row) {
        order[at_index(row)] = row;
        column[at_index(row)] = all[(first + row) * rules.experts + e];
      }
      std::partial_sort(order.begin(), order.begin() + room, order.end(), [&](int64_t a, int64_t b) {
        const float of_a = column[at_index(a)], of_b = column[at_index(b)];
        return of_a > of_b || (of_a == of_b && a < b);
      });
      for (int64_t j = 0; j < room; ++j) taken[at_index((first + order[at_index(j)]) * rules.experts + e)] = 1;
    }
  });
  std::vector<Assignment> assignments;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t e = 0; e < rules.experts; ++e)
      if (taken[at_index(row * rules.experts + e)])
        assignments.push_back({.row = row, .expert = e, .weight = scale * all[row * rules.experts + e]});
  return assignments;
}

void index_rows(Routing& routing, int64_t count) {
  routing.first.assign(at_index(count) + 1, 0);
  for (const int64_t row : routing.rows) ++routing.first[at_index(row) + 1];
  for (size_t t = 1; t < routing.first.size(); ++t) routing.first[t] += routing.first[t - 1];
  std::vector<int64_t> next(routing.first.begin(), routing.first.end() - 1);
  routing.sent.resize(routing.rows.size());
  for (size_t place = 0; place < routing.rows.size(); ++place)
    routing.sent[at_index(next[at_index(routing.rows[place])]++)] = static_cast<int64_t>(place);
}

Routing sort_by_expert(std::span<const Assignment> assignments, mesh::Range own, int64_t experts) {
  Routing routing;
  routing.begin = own.begin;
  routing.counts.assign(at_index(experts), 0);
  routing.routed.assign(at_index(experts), 0);
  for (const Assignment& a : assignments) {
    if (a.row < own.begin || a.row >= own.end) continue;
    Assignment& here = routing.assignments.emplace_back(a);
    here.row -= own.begin;
    ++routing.routed[at_index(a.expert)];
    if (a.kept) ++routing.counts[at_index(a.expert)];
  }
  std::vector<int64_t> next(at_index(experts), 0);
  int64_t sum = 0;
  for (size_t e = 0; e < next.size(); ++e) next[e] = std::exchange(sum, sum + routing.counts[e]);
  routing.rows.resize(at_index(sum));
  routing.weights.resize(at_index(sum));
  routing.slots.resize(at_index(sum));
  for (size_t slot = 0; slot < routing.assignments.size(); ++slot) {
    const Assignment& a = routing.assignments[slot];
    if (!a.kept) continue;
    const size_t place = at_index(next[at_index(a.expert)]++);
    routing.rows[place] = a.row;
    routing.weights[place] = a.weight;
    routing.slots[place] = static_cast<int64_t>(slot);
  }
  index_rows(routing, own.size());
  return routing;
}

}  // namespace lockstep::nn
