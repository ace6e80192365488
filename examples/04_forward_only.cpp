// A block of your own in a few lines: a forward function over tensors, which LibTorch's autograd differentiates, in a program that has all
// verbs of `lockstep`. It trains with data parallelism, ZeRO, pipelines, recomputation and offload; to be cut over tp it has to say how, as
// 03_own_block does. Without arguments it lets 2 ranks with ZeRO-3 prove against one rank that they compute the same. Some seconds.
//   04_forward_only train run.toml -n 2      with model.preset = "mixer" in run.toml, or any field behind: --model.preset=mixer
#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>

#include <cstdio>

#include "lockstep/arch/own_preset.h"
#include "lockstep/base/error.h"
#include "lockstep/data/token_file.h"
#include "lockstep/model/forward_block.h"
#include "lockstep/train/program.h"

using namespace lockstep;

// Token mixing without attention: a gate times this token's values and those of the token before it. x, y [B, S, D].
at::Tensor mix(const std::vector<at::Tensor>& parameters, const at::Tensor& x) {
  const at::Tensor& gate = parameters[0];    // [D, D]
  const at::Tensor& values = parameters[1];  // [D, D]
  const at::Tensor& share = parameters[2];   // [D]: of the token before
  const at::Tensor v = at::linear(x, values);
  const at::Tensor before = at::constant_pad_nd(v.narrow(1, 0, v.size(1) - 1), {0, 0, 1, 0});
  return at::sigmoid(at::linear(x, gate)) * (v + share * before);
}

// What nobody can read off a function: parameters, FLOPs, and how much its graph keeps. From it come the parameter table, the memory that
// is predicted, the balance of pipeline stages and MFU.
arch::ForwardKind description() {
  arch::ForwardKind kind{.id = "mixer"};
  kind.parameters = [](const arch::ModelConfig& m) -> std::vector<arch::ForwardParameter> {
    return {{.name = "gate", .shape = {m.hidden, m.hidden}},
            {.name = "values", .shape = {m.hidden, m.hidden}},
            {.name = "share", .shape = {m.hidden}, .init = arch::Init::kOnes}};
  };
  kind.flops_per_token = [](const arch::ModelConfig& m) { return 4.0 * static_cast<double>(m.hidden * m.hidden); };
  kind.kept_per_token = [](const arch::ModelConfig& m) { return 3.0 * static_cast<double>(m.hidden); };  // sigmoid, v + ..., before
  kind.by_token = false;  // it looks at the token before: so no context parallelism, no packed documents
  return kind;
}

// Every process comes here: this one, and the copies of it that `-n` starts as ranks.
void add_model() {
  model::add_forward_block(description(), mix);
  const arch::Branch mixer{.kind = "mixer", .name = "mixer"}, attention{.kind = "attention", .name = "attention"},
      mlp{.kind = "mlp", .name = "mlp"};
  // Layers in turn: a mixer or attention, then the library's MLP.
  arch::add_preset({.name = "mixer",
                    .section = {.family = "llama", .layers = 4, .hidden = 48, .heads = 4, .vocab_size = 97, .max_seq_len = 64},
                    .blocks = {{mixer, mlp}, {attention, mlp}}});
}

int prove() {
  data::TokenFileWriter writer("toy", 97);  // counts 0, 1, ... 96, 0, ...
  std::vector<int32_t> ids(8192);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 97);
  writer.add_document(ids);
  writer.finish();
  return train::run_program({"verify", "-n", "2", "--model.preset=mixer", "--data.train=toy", "--train.seq_len=32", "--train.global_batch=8",
                             "--train.micro_batch=2", "--parallel.zero=3", "--memory.recompute=full"});
}

int main(int argc, char** argv) try {
  add_model();
  return argc > 1 ? train::run_program(argc, argv) : prove();
} catch (const Error& error) {  // of add_model
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
