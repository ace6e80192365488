// AdamW on the CPU beside the kernel of torch.optim.AdamW(fused=True), over flat fp32 buffers, in turns. One JSON object
// on standard output: seconds of each, by elements and threads.
//
//   bench_adamw [ROUNDS]
#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/optim/optimizer.h"

namespace {

using lockstep::optim::Parameter;

struct State {
  at::Tensor value, grad, exp_avg, exp_avg_sq;
};

State state_of(int64_t numel) {
  return {.value = at::full({numel}, 0.5),
          .grad = at::full({numel}, 0.01),
          .exp_avg = at::zeros({numel}),
          .exp_avg_sq = at::zeros({numel})};
}

template <typename Update>
double seconds(Update update) {
  const auto began = std::chrono::steady_clock::now();
  update();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nlohmann::json measure(int64_t numel, int threads, int rounds) {
  at::set_num_threads(threads);
  State ours = state_of(numel), theirs = state_of(numel);
  const at::Tensor step = at::full({}, 1.0);
  std::vector<double> here, torch;
  for (int round = -1; round < rounds; ++round) {  // the first touches the memory
    const double mine = seconds([&] {
      lockstep::optim::step(
          {Parameter{.value = ours.value, .grad = ours.grad, .slots = {ours.exp_avg, ours.exp_avg_sq}, .decay = true}}, {},
          {.lr = 1e-3, .number = round + 2});
    });
    const double other = seconds([&] {
      at::_fused_adamw_({theirs.value}, {theirs.grad}, {theirs.exp_avg}, {theirs.exp_avg_sq}, {}, {step}, 1e-3, 0.9, 0.95,
                        0.1, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
    });
    if (round < 0) continue;
    here.push_back(mine);
    torch.push_back(other);
  }
  return {{"elements", numel},
          {"threads", threads},
          {"lockstep_seconds", median(here)},
          {"torch_seconds", median(torch)},
          {"rate", median(torch) / median(here)}};
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  nlohmann::json rows = nlohmann::json::array();
  for (const int64_t numel : {int64_t{1} << 20, int64_t{10'000'000}, int64_t{100'000'000}})
    for (const int threads : {1, 2}) rows.push_back(measure(numel, threads, rounds));
  std::printf("%s\n", rows.dump(1).c_str());
  return 0;
}
