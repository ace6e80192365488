// hf_dump FOLDER BATCH SEQ [AUX]: runs the small model of FOLDER/config.json forward, backward and one update, and writes what
// hf_reference_test.py compares with Hugging Face transformers (support/tensor_dump.h; tokens and targets as fp32 too), and in
// exported/ a config.json of our own. AUX: the coefficient of the auxiliary loss of experts; without it there is none.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/file.h"
#include "lockstep/config/run_config.h"
#include "lockstep/model/model.h"
#include "lockstep/model/parts.h"
#include "lockstep/optim/optimizer.h"
#include "support/model_parameters.h"
#include "support/tensor_dump.h"

namespace {

using namespace lockstep;

// The logits of the whole batch, which training itself never holds: [B, S, V].
at::Tensor full_logits(const arch::ModelConfig& model, nn::ParameterSource& source, const nn::Microbatch& microbatch) {
  const model::ModelOptions options{.training = false};
  model::PartsBuilder parts(model, source, options);
  at::Tensor x = parts.embedding()->forward({}, microbatch, nullptr);
  for (int i = 0; i < model.layers; ++i) x = parts.block(i)->forward(x, microbatch, nullptr);
  return parts.head()->logits(x);
}

// One AdamW update from the mean loss, in place. The large epsilon keeps gradients that are zero but for rounding (the
// biases of keys) from becoming steps of full size.
void update(testing::ModelParameters& parameters, const nn::Microbatch& microbatch) {
  std::vector<optim::Parameter> list;
  for (const arch::ParamSpec& spec : parameters.table()) {
    const nn::Parameter p = parameters.parameter(spec.name);
    const auto zeros = [&] { return at::zeros(spec.shape); };
    list.push_back({.value = p.value, .grad = p.grad, .slots = {zeros(), zeros()}, .decay = spec.weight_decay});
  }
  const double tokens = microbatch.targets.ne(-100).sum().item<double>();
  optim::step(list, {.weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-3},
              {.lr = 0.01, .number = 1, .grad_scale = 1 / tokens});
}

// What each block with experts has counted: [E + 3] as nn::Branch::take_loads.
void add_loads(const std::vector<std::unique_ptr<nn::Layer>>& layers, testing::TensorDump& dump) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::vector<double> loads = layers[i]->take_loads();
    if (!loads.empty()) dump.add("loads/" + std::to_string(i), at::tensor(loads));
  }
}

void run(const std::filesystem::path& folder, int64_t batch, int64_t seq, double aux) {
  const arch::ModelConfig model = arch::load_hf_config(folder).model;
  testing::ModelParameters parameters(model, /*seed=*/1234);
  // Values of a trained model's size: at the initial 0.02 a wrong operator would hardly show.
  for (const arch::ParamSpec& spec : parameters.table()) {
    const at::Tensor value = parameters.parameter(spec.name).value;
    arch::ParamSpec noise = spec;
    noise.name += "/noise";
    noise.init = arch::Init::kNormal;
    noise.init_std = 0.1;
    at::Tensor random = at::empty(spec.shape);
    model::initial_values(noise, 1, 0, {random.data_ptr<float>(), static_cast<size_t>(random.numel())});
    value.add_(random);
  }
  nn::Microbatch microbatch = testing::random_microbatch(model, batch, seq, /*ignore_every=*/5);
  microbatch.sequence_targets = nn::count_valid_of_sequences(microbatch.targets);

  testing::TensorDump dump;
  dump.add("tokens", microbatch.tokens);
  dump.add("targets", microbatch.targets);
  dump.add("logits", full_logits(model, parameters, microbatch));
  const config::MoeSection moe{.balance = aux > 0 ? config::Balance::kAux : config::Balance::kNone, .aux_coefficient = aux};
  const auto layers = model::build_layers(model, parameters, {.moe = moe});
  dump.add("loss", at::empty({}).fill_(testing::forward_backward(layers, microbatch)));
  add_loads(layers, dump);
  for (const arch::ParamSpec& spec : parameters.table()) {
    dump.add("value/" + spec.name, parameters.parameter(spec.name).value);
    dump.add("grad/" + spec.name, parameters.parameter(spec.name).grad);
  }
  update(parameters, microbatch);
  for (const arch::ParamSpec& spec : parameters.table()) {
    dump.add("updated/" + spec.name, parameters.parameter(spec.name).value);
  }
  dump.write(folder);
  std::filesystem::create_directory(folder / "exported");
  write_file(folder / "exported" / "config.json", arch::hf_config_json(model).dump(2));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::cerr << "usage: hf_dump FOLDER BATCH SEQ [AUX]\n";
    return 2;
  }
  try {
    run(argv[1], std::stoll(argv[2]), std::stoll(argv[3]), argc == 5 ? std::stod(argv[4]) : 0);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
