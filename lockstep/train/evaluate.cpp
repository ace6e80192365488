#include "lockstep/train/evaluate.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/train/batches.h"

namespace lockstep::train {

double evaluate(engine::Executor& executor, engine::Groups& groups, const data::Sampler& validation, int64_t samples,
                at::Device device) {
  // Ranks of one replica go through the same samples, those of cp through other tokens of them.
  const program::Layout& layout = executor.layout();
  const int replicas = layout.mesh.degree(layout.samples());
  MicrobatchPart part = part_of(layout, groups.rank());
  part.sequence_targets = false;  // layers' own losses are no part of it
  const int64_t total = std::min(samples, validation.samples_per_epoch());
  const mesh::Range mine = mesh::shard_range(total, replicas, layout.mesh.group_rank(groups.rank(), layout.samples()));
  double loss = 0;
  int64_t tokens = 0;
  const int64_t micro_batch = layout.micro_batch;
  // Where parameters are gathered or experts shared all ranks go through the model equally often: one that has no samples left takes
  // one of which nothing counts.
  const int64_t passes = (mesh::shard_range(total, replicas, 0).size() + micro_batch - 1) / micro_batch;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t first = mine.begin + pass * micro_batch, count = std::min(micro_batch, mine.end - first);
    nn::Microbatch microbatch = load_microbatch(
        validation, {.first = count > 0 ? first : 0, .count = std::max<int64_t>(1, count)}, device, part);
    if (count <= 0) {
      microbatch.targets.fill_(-100);
      microbatch.valid_targets = 0;
    }
    const auto [sum, valid] = executor.evaluate(microbatch);
    loss += sum;
    tokens += valid;
  }
  groups.world().confirm();  // of what was gathered for it
  const at::Tensor sums = at::tensor({loss, static_cast<double>(tokens)}, at::kDouble);
  groups.replica().all_reduce(sums, {.id = program::call_id(program::Purpose::kEvaluate), .algorithm = program::Algorithm::kDirect}).wait();
  return sums[0].item<double>() / sums[1].item<double>();
}

void Evaluation::settled(const RunPosition& at) {
  if (!due(at.step)) return;
  const Time begin = std::chrono::steady_clock::now();
  const double loss = loss_();
  output_.note(cat("validation loss ", number_text(static_cast<float>(loss)), " at step ", at.step));
  output_.event("eval", at.step, {{"validation/loss", loss}, {"seconds", seconds_since(begin)}});
}

}  // namespace lockstep::train
