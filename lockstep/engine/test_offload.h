// Units whose states are offloaded, and what an offload of activations promises of any device; for the tests of both.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/engine/activation_offload.h"
#include "lockstep/engine/host_states.h"

namespace lockstep::engine::testing {

// Two units of `numel` elements, whole.
inline arch::FlatLayout two_units(int64_t numel) {
  return {.units = {{.layer = 0, .begin = 0, .end = numel, .slots = {}}, {.layer = 1, .begin = numel, .end = 2 * numel, .slots = {}, .id = 1}},
          .numel = 2 * numel};
}

// The slots of an optimizer for each of them.
inline std::vector<std::vector<arch::SlotBuffer>> slots_of_two(const arch::OptimizerSpec& optimizer, int64_t numel) {
  std::vector<arch::SlotBuffer> slots;
  for (const arch::StateSlot& slot : optimizer.slots)
    slots.push_back({.text = std::string(slot.text), .dtype = slot.dtype, .numel = numel});
  return {slots, slots};
}

// What the plan of memory counts on: one input on its way out while the next is made, not two.
inline void expect_evicted_inputs_are_free(const std::function<at::Tensor()>& make_input) {
  using Watch = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;  // is a tensor still held by somebody?
  CopyQueue copies;
  ActivationOffload offload(copies, nullptr);
  std::optional<Watch> before;
  for (int layer = 0; layer < 3; ++layer) {
    at::Tensor input = make_input();
    const Watch watch(input.getIntrusivePtr());
    offload.evict({layer, 0}, std::move(input));
    EXPECT_TRUE(!before || before->expired()) << layer;
    before = watch;
  }
  offload.fetch({0, 0});
  EXPECT_TRUE(before->expired());
  offload.clear();
}

}  // namespace lockstep::engine::testing
