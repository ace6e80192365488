// A block of your own that every layout can cut: its description, from which parameters, shards, memory, FLOPs, calls and drawing follow,
// and a layer that writes its own backward pass. Both are registered under one name; the engine, the passes and the verbs of `lockstep` do
// the rest. Without arguments 4 ranks, tp 2 x pp 2, prove against one rank that they compute the same. Some seconds.
//   03_own_block show block -n 2 --model.preset=square --parallel.tp=2
//   03_own_block train run.toml -n 4         with model.preset = "square"
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "lockstep/arch/own_preset.h"
#include "lockstep/base/error.h"
#include "lockstep/data/token_file.h"
#include "lockstep/model/parts.h"
#include "lockstep/train/program.h"

using namespace lockstep;

// y = out(relu(in x)^2) (So et al. 2021). `in` is cut by its outputs and `out` by its inputs, [D] -> [F/tp] -> [D].
class SquaredRelu : public nn::Branch {
 public:
  SquaredRelu(std::unique_ptr<nn::Linear> in, std::unique_ptr<nn::Linear> out) : in_(std::move(in)), out_(std::move(out)) {}

  // What backward needs again, and nothing else: what is written here is what is kept, offloaded and counted.
  struct Kept : Saved {
    nn::Linear::Saved in, out;
    at::Tensor h;  // [B, S, F/tp]: relu(in x)
  };
  std::unique_ptr<Saved> new_saved() const override { return std::make_unique<Kept>(); }

  at::Tensor forward(const at::Tensor& x, Saved* saved, const nn::Sequences&) override {
    auto* kept = static_cast<Kept*>(saved);
    const at::Tensor h = in_->forward(x, kept ? &kept->in : nullptr).relu_();
    if (kept) kept->h = h;
    return out_->forward(h * h, kept ? &kept->out : nullptr);
  }

  // I: the gradient of x, which the stage before waits for. The second form may still be on its way over tp when it returns ...
  at::Tensor backward_input(const at::Tensor& dy, Saved& saved) override {
    auto& kept = static_cast<Kept&>(saved);
    return in_->backward_input(gradient(dy, kept), kept.in);
  }
  nn::Pending start_backward_input(const at::Tensor& dy, Saved& saved) override {
    auto& kept = static_cast<Kept&>(saved);
    return in_->start_backward_input(gradient(dy, kept), kept.in);
  }
  // ... beside W, the gradients of weights, which a zero-bubble schedule puts elsewhere altogether.
  void backward_weight(Saved& saved) override {
    auto& kept = static_cast<Kept&>(saved);
    out_->backward_weight(kept.out);
    in_->backward_weight(kept.in);
  }

  // Full recomputation makes all that forward keeps, but not y; selective drops what is cheap, here the inputs of both linears.
  void recompute(const at::Tensor& x, Saved& saved, const nn::Sequences&) override {
    auto& kept = static_cast<Kept&>(saved);
    kept.h = in_->forward(x, &kept.in).relu_();
    kept.out.x = kept.h * kept.h;
  }
  void forget(Saved& saved) override {
    auto& kept = static_cast<Kept&>(saved);
    kept.in.x.reset(), kept.out.x.reset();
  }
  void restore(const at::Tensor& x, Saved& saved) override {
    auto& kept = static_cast<Kept&>(saved);
    kept.in.x = x, kept.out.x = kept.h * kept.h;
  }

 private:
  at::Tensor gradient(const at::Tensor& dy, Kept& kept) {  // of h, in its place
    at::Tensor dh = std::exchange(kept.h, {}).mul_(2);      // 0 where relu cut it off
    return dh.mul_(out_->backward_input(dy, kept.out));
  }
  std::unique_ptr<nn::Linear> in_, out_;
};

// Between its two linears: which tensors there are, how long they live, which kernels run. The linears describe themselves.
class Description : public arch::BranchDescription {
 public:
  Description(arch::LayerBuilder& b, const arch::BranchLinears& linears) {
    projected = b.activations(linears.first.out, {"relu", arch::Recompute::kSelective});  // kept by "none" and by "selective"
    inner = b.activations(linears.last.in, {"square", arch::Recompute::kNone});           // by "none" alone
  }
  void forward(arch::LayerBuilder& b) const override {
    b.take(arch::kAgain, inner);
    b.kernel(arch::kAgain, /*scratch=*/0, /*traffic=*/b.bytes(projected) + b.bytes(inner));
  }
};

void add_model() {
  arch::add_branch_kind(
      {.id = "squared_relu",
       .sum = "sum after squared_relu",
       .linears = [](const arch::ModelConfig& m) -> arch::BranchLinears {
         return {.first = {.name = "in", .in = m.hidden, .out = m.ffn},
                 .pieces = {{"in", m.ffn}},  // one parameter, blocks.i.ffn.in.weight
                 .last = {.name = "out", .in = m.ffn, .out = m.hidden}};
       },
       .describe = [](arch::LayerBuilder& b, const arch::BranchLinears& linears) -> std::unique_ptr<arch::BranchDescription> {
         return std::make_unique<Description>(b, linears);
       },
       .between = [](const arch::ModelConfig&, const arch::Branch&, const arch::ParameterPieces&) -> std::string { return "relu, squared"; }});
  model::add_branch_maker("squared_relu", [](model::PartsBuilder& parts, const model::BranchPlace& place) -> std::unique_ptr<nn::Branch> {
    return std::make_unique<SquaredRelu>(parts.first_linear(place), parts.last_linear(place));
  });
  const arch::Branch attention{.kind = "attention", .name = "attention"}, square{.kind = "squared_relu", .name = "ffn"};
  arch::add_preset({.name = "square",
                    .section = {.family = "llama", .layers = 4, .hidden = 48, .heads = 4, .ffn = 96, .vocab_size = 97, .max_seq_len = 64},
                    .blocks = {{attention, square}}});
}

int prove() {
  data::TokenFileWriter writer("toy", 97);  // counts 0, 1, ... 96, 0, ...
  std::vector<int32_t> ids(8192);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 97);
  writer.add_document(ids);
  writer.finish();
  return train::run_program({"verify", "-n", "4", "--model.preset=square", "--data.train=toy", "--train.seq_len=32", "--train.global_batch=8",
                             "--train.micro_batch=2", "--parallel.tp=2", "--parallel.pp=2", "--parallel.schedule=zb-h1"});
}

int main(int argc, char** argv) try {
  add_model();
  return argc > 1 ? train::run_program(argc, argv) : prove();
} catch (const Error& error) {  // of add_model
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
