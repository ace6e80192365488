// What an offload of activations promises of any device, for its tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <utility>

#include "lockstep/engine/activation_offload.h"

namespace lockstep::engine::testing {

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
