// muon_dump FOLDER ROWS COLUMNS original|match_rms_adamw NESTEROV bf16|fp32: three steps of Muon on a random matrix. Writes what
// muon_reference_test.py compares with torch.optim.Muon: value/0, and grad/i, value/i, momentum/i of every step i.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <iostream>
#include <span>
#include <string>

#include "lockstep/base/random.h"
#include "lockstep/base/text.h"
#include "lockstep/optim/optimizer.h"
#include "support/tensor_dump.h"

namespace {

using namespace lockstep;

at::Tensor normal(const std::string& name, at::IntArrayRef shape) {
  at::Tensor values = at::empty(shape);
  RandomStream(1234, name).normal(0, std::span(values.data_ptr<float>(), static_cast<size_t>(values.numel())));
  return values;
}

void run(const std::filesystem::path& folder, at::IntArrayRef shape, const config::OptimizerSection& options) {
  const optim::Parameter matrix{
      .value = normal("value", shape).mul_(0.1), .grad = at::empty(shape), .slots = {at::zeros(shape)}, .decay = true,
      .rule = {.optimizer = &arch::optimizer_spec("muon")}};
  testing::TensorDump dump;
  dump.add("value/0", matrix.value);
  for (int64_t step = 1; step <= 3; ++step) {
    matrix.grad.copy_(normal(cat("grad/", step), shape));
    optim::step({matrix}, options, {.lr = 0.02, .number = step, .grad_scale = 0.5});
    dump.add(cat("grad/", step), matrix.grad);
    dump.add(cat("value/", step), matrix.value);
    dump.add(cat("momentum/", step), matrix.slots[0]);
  }
  dump.write(folder);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::cerr << "usage: muon_dump FOLDER ROWS COLUMNS original|match_rms_adamw NESTEROV bf16|fp32\n";
    return 2;
  }
  try {
    const std::string scale = argv[4], type = argv[6];
    run(argv[1], {std::stol(argv[2]), std::stol(argv[3])},
        {.nesterov = std::stol(argv[5]) != 0,
         .ns_precision = type == "bf16" ? config::Precision::kBf16 : config::Precision::kFp32,
         .muon_scale = scale == "original" ? config::MuonScale::kOriginal : config::MuonScale::kMatchRmsAdamW});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
