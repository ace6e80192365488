#include "lockstep/train/evaluate.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

#include "lockstep/train/batches.h"

namespace lockstep::train {

double evaluate(engine::Executor& executor, engine::Groups& groups, const data::Sampler& validation, int64_t samples,
                at::Device device) {
  comm::Communicator& data = groups.data();
  const int64_t total = std::min(samples, validation.samples_per_epoch());
  const mesh::Range mine = mesh::shard_range(total, data.size(), data.rank());
  double loss = 0;
  int64_t tokens = 0;
  for (int64_t first = mine.begin; first < mine.end; first += executor.layout().micro_batch) {
    const int64_t count = std::min(executor.layout().micro_batch, mine.end - first);
    const auto [sum, valid] = executor.evaluate(load_microbatch(validation, {.first = first, .count = count}, device));
    loss += sum;
    tokens += valid;
  }
  const at::Tensor sums = at::tensor({loss, static_cast<double>(tokens)}, at::kDouble);
  data.all_reduce(sums, {.site = "eval", .algorithm = program::Algorithm::kDirect}).wait();
  return sums[0].item<double>() / sums[1].item<double>();
}

}  // namespace lockstep::train
