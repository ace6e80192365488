// A kind of branch of which somebody gives a forward function alone (nn/autograd_branch.h; model/forward_block.h adds both halves): its
// parameters, and what it costs by the numbers that its author gives, since nobody can read them off a function.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/branch_kind.h"

namespace lockstep::arch {

struct ForwardParameter {
  std::string name{};            // "up": blocks.i.<branch>.up.weight
  std::vector<int64_t> shape{};  // one dim or two; of a linear [out, in]
  Init init = Init::kNormal;
  double init_std = 0.02;
};

struct ForwardKind {
  std::string id{};
  // Those of a model, in the order in which the function gets them; unset: none.
  std::function<std::vector<ForwardParameter>(const ModelConfig&)> parameters{};
  // FLOPs of the forward pass for one token; the backward pass counts twice as many. Unset: two for each element of a matrix.
  std::function<double(const ModelConfig&)> flops_per_token{};
  // Numbers of the compute dtype that the graph of one token keeps beside x. The prediction of memory knows no other source: what it says
  // is as good as this. Unset: of each matrix [out, in] in + 2 out, as a linear and a nonlinearity behind it keep them.
  std::function<double(const ModelConfig&)> kept_per_token{};
  bool by_token = false;  // y of a token depends on x of that token alone
};

// Adds it as a kind of branches that no layout cuts (BranchKind::whole_only). InternalError where there is a kind of that id.
void add_forward_kind(const ForwardKind& kind);
// InternalError where none was added. It lives as long as the program.
const ForwardKind& forward_kind(std::string_view id);

}  // namespace lockstep::arch
