// Which tokens go to which experts: choice by tokens or by experts, groups, capacity, and the order in which rows are sent. Pure functions
// on the host over fp32 matrices of the CPU; every tie goes to the lower expert, then to the lower row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/config/run_config.h"
#include "lockstep/mesh/placement.h"

namespace lockstep::nn {

struct RoutingRules {
  int64_t experts = 1;
  int64_t per_token = 1;
  config::Router router = config::Router::kSoftmaxAfterTopk;
  int64_t groups = 1;      // of neighbouring experts, equal ones
  int64_t top_groups = 1;  // that a token may choose from
  double routed_scale = 1;
  std::optional<double> capacity_factor{};  // nothing: no token is dropped
  config::Drop drop = config::Drop::kProbability;
};

// A token and one of its experts.
struct Assignment {
  int64_t row = 0;
  int64_t expert = 0;
  float weight = 0;
  bool kept = true;  // false: dropped, no room at the expert
  bool operator==(const Assignment&) const = default;
};

// arch::expert_capacity of these rules.
int64_t expert_capacity(double factor, const RoutingRules& rules, int64_t length);

// Choice by tokens. scores [rows, E] as router_scores makes them, bias [E] fp32 or undefined, added for the selection alone. The per_token
// experts of each row, rows in order, the best first.
std::vector<Assignment> choose_experts(const at::Tensor& scores, const at::Tensor& bias, const RoutingRules& rules);

// Marks what an expert has no room for in each sequence of `length` rows; whole sequences, assignments by row.
void drop_beyond_capacity(std::span<Assignment> assignments, const RoutingRules& rules, int64_t length);

// The same by the load of the step before: `last` [E] are its assignments before dropping, of all ranks. An expert whose load was
// beyond capacity_factor times the mean keeps, of each sequence, that share of its assignments that would have brought it there, rounded
// up; any other keeps all.
void drop_beyond_last_load(std::span<Assignment> assignments, const RoutingRules& rules, int64_t length, std::span<const double> last);

// Choice by experts (Zhou et al. 2022): in each sequence of `length` rows an expert takes its best min(capacity, length) ones by
// `scores` [rows, E]. By row, then by expert.
std::vector<Assignment> choose_tokens(const at::Tensor& scores, const RoutingRules& rules, int64_t length);

struct DeviceRouting;

// How the own rows of a rank are sent and summed.
struct Routing {
  std::vector<Assignment> assignments{};  // of own rows, which count from 0; by row
  // Those kept, by expert, then by row: the order in which rows are sent.
  std::vector<int64_t> rows{};     // [N] whose row it is
  std::vector<float> weights{};    // [N]
  std::vector<int64_t> slots{};    // [N] place in `assignments`
  std::vector<int64_t> counts{};   // [E] rows for each expert
  // The same for each row: sent[first[t]] .. sent[first[t + 1] - 1] are the places of row t in that order, ascending.
  std::vector<int64_t> first{};    // [T + 1]
  std::vector<int64_t> sent{};     // [N]
  std::vector<int64_t> routed{};   // [E] assignments before dropping
  // Of the losses over the sequences of the microbatch.
  at::Tensor aux_slope{};          // [B, E] fp32: gradient of the auxiliary loss by each probability of sequence b; undefined: none
  at::Tensor z_slope{};            // [B] fp32: z_coefficient v_b / S; undefined: none
  double aux_sum = 0;
  double z_sum = 0;
  int64_t begin = 0;               // own row 0 within the rows of the microbatch that are here
  int64_t length = 1;              // S: tokens of a sequence
  int64_t parts = 1;               // equal ones of each sequence, of which one is here
  // Set where the host does not know the routing (device_routing.h): the vectors are empty then, the sums in it, the slopes on its device.
  std::shared_ptr<const DeviceRouting> on_device{};

  int64_t rows_of_sequence() const { return length / parts; }  // here
  int64_t own_rows() const { return static_cast<int64_t>(first.size()) - 1; }
  int64_t sent_rows() const { return static_cast<int64_t>(rows.size()); }
  int64_t dropped() const { return static_cast<int64_t>(assignments.size()) - sent_rows(); }
};

// Of `assignments` of a microbatch, by row, those of the rows in `own`.
Routing sort_by_expert(std::span<const Assignment> assignments, mesh::Range own, int64_t experts);

// Makes `first` and `sent` of a Routing whose rows, of `count` in all, are set.
void index_rows(Routing& routing, int64_t count);

}  // namespace lockstep::nn
