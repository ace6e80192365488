// Blocks of other branches than attention and then an MLP, among them a kind that only tests have: "square",
// y = out((in x)^2), added to both registries where this is included.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/model/parts.h"
#include "lockstep/nn/branch.h"

namespace lockstep::testing {

class SquareDescription : public arch::BranchDescription {
 public:
  SquareDescription(arch::LayerBuilder& b, const arch::BranchLinears& linears) {
    projected = b.activations(linears.first.out, {"square in", arch::Recompute::kSelective});
    inner = b.activations(linears.last.in, {"square", arch::Recompute::kNone});
  }
  void forward(arch::LayerBuilder& b) const override {
    b.take(arch::kAgain, inner);
    b.kernel(arch::kAgain, 0, b.bytes(projected) + b.bytes(inner));
  }
};

class Square : public nn::Branch {
 public:
  Square(std::unique_ptr<nn::Linear> in, std::unique_ptr<nn::Linear> out) : in_(std::move(in)), out_(std::move(out)) {}

  std::unique_ptr<nn::Branch::Saved> new_saved() const override { return std::make_unique<Kept>(); }
  at::Tensor forward(const at::Tensor& x, Saved* saved, const nn::Sequences&) override {
    auto* kept = static_cast<Kept*>(saved);
    at::Tensor h = in_->forward(x, kept ? &kept->in : nullptr);
    const at::Tensor a = h.mul(h);
    if (kept) kept->h = h;
    h.reset();
    return out_->forward(a, kept ? &kept->out : nullptr);
  }
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved) override {
    auto& kept = static_cast<Kept&>(saved);
    return in_->backward_input(gradient(dy, kept), kept.in);
  }
  nn::Pending start_backward_input(const at::Tensor& dy, Saved& saved) override {
    auto& kept = static_cast<Kept&>(saved);
    return in_->start_backward_input(gradient(dy, kept), kept.in);
  }
  void backward_weight(Saved& saved) override {
    auto& kept = static_cast<Kept&>(saved);
    out_->backward_weight(kept.out);
    in_->backward_weight(kept.in);
  }
  void recompute(const at::Tensor& x, Saved& saved, const nn::Sequences&) override {
    auto& kept = static_cast<Kept&>(saved);
    kept.h = in_->forward(x, &kept.in);
    kept.out.x = kept.h.mul(kept.h);
  }
  void forget(Saved& saved) override {
    auto& kept = static_cast<Kept&>(saved);
    kept.in.x.reset();
    kept.out.x.reset();
  }
  void restore(const at::Tensor& x, Saved& saved) override {
    auto& kept = static_cast<Kept&>(saved);
    kept.in.x = x;
    kept.out.x = kept.h.mul(kept.h);
  }

 private:
  struct Kept : Saved {
    nn::Linear::Saved in;
    at::Tensor h;  // [B, S, F]
    nn::Linear::Saved out;
  };
  at::Tensor gradient(const at::Tensor& dy, Kept& kept) {  // of h, in its place
    at::Tensor dh = std::exchange(kept.h, {}).mul_(2);
    dh.mul_(out_->backward_input(dy, kept.out));
    return dh;
  }
  std::unique_ptr<nn::Linear> in_, out_;
};

inline bool add_square() {
  arch::add_branch_kind({.id = "square",
                         .sum = "sum after square",
                         .linears = [](const arch::ModelConfig& m) -> arch::BranchLinears {
                           return {.first = {.name = "in", .in = m.hidden, .out = m.ffn},
                                   .pieces = {{"in", m.ffn}},
                                   .last = {.name = "out", .in = m.ffn, .out = m.hidden}};
                         },
                         .describe = [](arch::LayerBuilder& b,
                                        const arch::BranchLinears& linears) -> std::unique_ptr<arch::BranchDescription> {
                           return std::make_unique<SquareDescription>(b, linears);
                         },
                         .between = [](const arch::ModelConfig&, const arch::Branch&, const arch::ParameterPieces&) -> std::string {
                           return "square";
                         }});
  model::add_branch_maker("square", [](model::PartsBuilder& parts, const model::BranchPlace& place) -> std::unique_ptr<nn::Branch> {
    return std::make_unique<Square>(parts.first_linear(place), parts.last_linear(place));
  });
  return true;
}
inline const bool kSquareIsThere = add_square();

inline arch::ModelConfig with_blocks(arch::ModelConfig model, std::vector<arch::BlockSpec> blocks) {
  model.blocks = std::move(blocks);
  return model;
}

inline arch::Branch normed(arch::Branch branch, bool before, bool behind) {
  branch.norm_before = before;
  branch.norm_behind = behind;
  return branch;
}
inline arch::Branch beside(arch::Branch branch) {
  branch.beside = true;
  return branch;
}

// Two attentions in one block, one branch alone, another order, a kind of one's own; norms behind, before and behind, none; branches
// beside each other, of one norm and of their own; blocks that differ by layer.
inline std::vector<std::vector<arch::BlockSpec>> other_blocks() {
  const arch::Branch attention{.kind = "attention", .name = "attention"}, second{.kind = "attention", .name = "second_attention"},
      mlp{.kind = "mlp", .name = "mlp"}, square{.kind = "square", .name = "square"};
  return {{{attention, second, mlp}},
          {{mlp, attention}, {attention}},
          {{attention, square}, {square}},
          {{mlp}, {attention, mlp, square}},
          {{normed(attention, false, true), normed(mlp, false, true)}, {normed(attention, true, true), normed(mlp, true, true)}},
          {{attention, beside(normed(mlp, false, false))}, {attention, beside(mlp)}},
          {{attention, beside(normed(second, false, true)), beside(normed(square, true, true)), normed(mlp, false, false)},
           {normed(mlp, false, false), beside(attention), beside(normed(square, false, false)), normed(second, false, true)}}};
}

}  // namespace lockstep::testing
