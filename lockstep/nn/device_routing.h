// The choice and the places of routing.h on the device that has the scores, in LibTorch's operators: the host reads no value and waits for
// nothing. For messages of slots, whose sizes follow from no count; choice by tokens alone. Ties go to the lower expert, then to the lower
// row. Any device; on the CPU routing.h is quicker.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "lockstep/mesh/placement.h"
#include "lockstep/nn/routing.h"

namespace lockstep::nn {

// The k experts of each row and their weights, the best first: choose_experts as two matrices.
struct DeviceChoice {
  at::Tensor expert;  // [rows, k] int64
  at::Tensor weight;  // [rows, k] fp32
};
// scores [rows, E] fp32 as device_scores makes them, bias [E] fp32 or undefined, on one device.
DeviceChoice choose_on_device(const at::Tensor& scores, const at::Tensor& bias, const RoutingRules& rules);

// drop_beyond_capacity: what stays, [rows, k] bool. Whole sequences of `length` rows.
at::Tensor kept_by_capacity(const DeviceChoice& choice, const RoutingRules& rules, int64_t length);
// drop_beyond_last_load: the same by the loads `last` [E] of the step before.
at::Tensor kept_by_last_load(const DeviceChoice& choice, const RoutingRules& rules, int64_t length, std::span<const double> last);

// Of the T rows that are routed here: what a Routing is where the host knows it. All T k assignments stand by row, in the order of choice,
// dropped ones too, so that no size follows from a value.
struct DeviceRouting {
  at::Tensor expert;    // [T, k] int64
  at::Tensor weight;    // [T, k] fp32, of dropped ones too
  at::Tensor kept;      // [T, k] bool
  at::Tensor slot;      // [T, k] int64: row of the message [E M, D], expert times M plus the place among those kept; dropped: E M
  at::Tensor routed;    // [E] int64: assignments before dropping
  at::Tensor aux_sum{}; // fp64, 0-d; undefined: no such loss
  at::Tensor z_sum{};   // likewise
  int64_t experts = 0;  // E
  int64_t room = 0;     // M: slots of an expert

  int64_t rows() const { return expert.size(0); }
  int64_t per_token() const { return expert.size(1); }
};
// Own rows of a choice. kept [rows, k] or undefined: all. `room` is the caller's bound: more rows of an expert would end in the slots of the next.
DeviceRouting place_in_slots(const DeviceChoice& choice, const at::Tensor& kept, mesh::Range own, const RoutingRules& rules, int64_t room);

// Most rows that an expert keeps of `own`, whatever the scores: what `room` has to be at least. Of `parts` equal parts of each sequence of
// `length` one is here, whose rows `own` counts.
int64_t most_of_expert(const RoutingRules& rules, mesh::Range own, int64_t length, bool by_capacity, int64_t parts = 1);

}  // namespace lockstep::nn
