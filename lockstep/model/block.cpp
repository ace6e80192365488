#include "lockstep/model/block.h"

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/model/block_saved.h"

namespace lockstep::model {

Block::Block(std::vector<Part> parts, parallel::TensorGroup* tensor) : parts_(std::move(parts)), tensor_(tensor) {
  LOCKSTEP_CHECK(!parts_.empty(), "a block without branches");
  LOCKSTEP_CHECK(!parts_.front().beside, "the first branch of a block is beside none");
}

nn::Sequences Block::begin(const nn::Microbatch& microbatch) {
  if (tensor_) tensor_->set_rows(microbatch.tokens.numel());
  return {.count = microbatch.tokens.size(0), .length = microbatch.tokens.size(1), .valid = microbatch.sequence_targets,
          .places = microbatch.places.get()};
}

std::unique_ptr<BlockSaved> Block::new_saved(const nn::Microbatch& microbatch) const {
  auto saved = std::make_unique<BlockSaved>();
  saved->microbatch = microbatch;
  for (const Part& part : parts_) saved->parts.emplace_back().branch = part.branch->new_saved();
  return saved;
}

at::Tensor Block::read(size_t part, Stream& stream, BlockSaved* saved) {
  const Part& p = parts_[part];
  BlockSaved::Part* kept = saved ? &saved->parts[part] : nullptr;
  at::Tensor h = std::exchange(stream.h, {});
  if (!p.shares_input) {
    at::Tensor sum = p.beside ? at::Tensor() : std::exchange(stream.sum, {});
    if (p.norm)
      h = p.norm->forward_sum(sum, stream.x, kept ? &kept->norm : nullptr);
    else if (sum.defined())
      sum.add_(stream.x);
    if (sum.defined()) stream.x = std::move(sum);
    if (!p.norm) h = stream.x;
    if (!p.norm && kept) kept->x = h;
  }
  if (shares_next(part)) stream.h = h;
  return h;
}

at::Tensor Block::norm_behind(size_t part, const at::Tensor& y, BlockSaved* saved) {
  nn::Norm* norm = parts_[part].norm_behind.get();
  return norm ? norm->forward(y, saved ? &saved->parts[part].norm_behind : nullptr) : y;
}

at::Tensor Block::branch(size_t part, Stream& stream, const nn::Microbatch& microbatch, BlockSaved* saved) {
  nn::Branch::Saved* kept = saved ? saved->parts[part].branch.get() : nullptr;
  const at::Tensor y = parts_[part].branch->forward(read(part, stream, saved), kept, begin(microbatch));
  return norm_behind(part, y, saved);
}

void Block::run(size_t part, Stream& stream, const nn::Microbatch& microbatch, BlockSaved* saved) {
  add(part, branch(part, stream, microbatch, saved), stream, microbatch, saved);
}

void Block::add(size_t part, const at::Tensor& of_branch, Stream& stream, const nn::Microbatch& microbatch, BlockSaved* saved) {
  at::Tensor y = parts_[part].dropout.forward(of_branch, microbatch, saved ? &saved->parts[part].dropout : nullptr);
  stream.sum = stream.sum.defined() ? stream.sum.add_(y) : std::move(y);
}

at::Tensor Block::forward(const at::Tensor& x, const nn::Microbatch& microbatch, std::unique_ptr<nn::Saved>* saved) {
  auto kept = saved ? new_saved(microbatch) : nullptr;
  Stream stream{.x = x, .sum = {}, .h = {}};
  for (size_t i = 0; i < parts_.size(); ++i) run(i, stream, microbatch, kept.get());
  if (saved) *saved = std::move(kept);
  return stream.sum.add_(stream.x);
}

std::unique_ptr<nn::Saved> Block::recompute(const at::Tensor& x, const nn::Microbatch& microbatch) {
  auto saved = new_saved(microbatch);
  Stream stream{.x = x, .sum = {}, .h = {}};
  size_t last_group = parts_.size() - 1;  // its sum is the output
  while (parts_[last_group].beside) --last_group;
  for (size_t i = 0; i < parts_.size(); ++i) {
    BlockSaved::Part& kept = saved->parts[i];
    if (i < last_group) {
      run(i, stream, microbatch, saved.get());
      continue;
    }
    if (parts_[i].norm_behind)
      branch(i, stream, microbatch, saved.get());
    else
      parts_[i].branch->recompute(read(i, stream, saved.get()), *kept.branch, begin(microbatch));
    parts_[i].dropout.redraw(stream.x, microbatch, kept.dropout);
  }
  return saved;
}

void Block::forget(nn::Saved& saved) {
  auto& s = static_cast<BlockSaved&>(saved);
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].branch->forget(*s.parts[i].branch);
    s.parts[i].dropout = {};
  }
}

void Block::restore(nn::Saved& saved) {
  auto& s = static_cast<BlockSaved&>(saved);
  at::Tensor shared;
  for (size_t i = 0; i < parts_.size(); ++i) {
    BlockSaved::Part& kept = s.parts[i];
    at::Tensor h = std::exchange(shared, {});
    if (!parts_[i].shares_input) h = parts_[i].norm ? parts_[i].norm->forward(kept.norm.x, nullptr) : kept.x;
    if (shares_next(i)) shared = h;
    parts_[i].branch->restore(h, *kept.branch);
    parts_[i].dropout.redraw(h, s.microbatch, kept.dropout);
  }
}

std::vector<double> Block::take_loads() {
  std::vector<double> loads;
  for (const Part& part : parts_) {
    const std::vector<double> of_part = part.branch->take_loads();
    loads.insert(loads.end(), of_part.begin(), of_part.end());
  }
  return loads;
}

void Block::set_last_loads(std::span<const double> routed) {
  for (const Part& part : parts_) part.branch->set_last_loads(routed);
}

// The gradient of what the branch made.
at::Tensor Block::branch_gradient(size_t part, const at::Tensor& dsum, BlockSaved& saved) {
  BlockSaved::Part& kept = saved.parts[part];
  const at::Tensor dy = parts_[part].dropout.backward(dsum, kept.dropout);
  nn::Norm* norm = parts_[part].norm_behind.get();
  return norm ? norm->backward_input(dy, kept.norm_behind) : dy;
}

// `dh`, which nobody else has, is that of what the branch read.
void Block::add_gradient(size_t part, at::Tensor dh, Gradients& gradients, BlockSaved& saved) {
  const Part& p = parts_[part];
  if (gradients.h.defined()) dh.add_(std::exchange(gradients.h, {}));
  if (p.shares_input) {
    gradients.h = std::move(dh);
    return;
  }
  gradients.x = p.norm ? p.norm->backward_input(dh, saved.parts[part].norm, gradients.x) : dh.add_(gradients.x);
  if (!p.beside) gradients.sum = gradients.x;
}

void Block::branch_backward_weight(size_t part, BlockSaved& saved) {
  BlockSaved::Part& kept = saved.parts[part];
  kept.x.reset();
  if (parts_[part].norm_behind) parts_[part].norm_behind->backward_weight(kept.norm_behind);
  parts_[part].branch->backward_weight(*kept.branch);
}

void Block::norm_backward_weight(size_t part, BlockSaved& saved) {
  if (parts_[part].norm) parts_[part].norm->backward_weight(saved.parts[part].norm);
}

at::Tensor Block::backward_input(const at::Tensor& dy, nn::Saved& saved) {
  auto& s = static_cast<BlockSaved&>(saved);
  Gradients gradients{.sum = dy, .x = dy, .h = {}};
  for (size_t i = parts_.size(); i-- > 0;) {
    at::Tensor dh = parts_[i].branch->backward_input(branch_gradient(i, gradients.sum, s), *s.parts[i].branch);
    add_gradient(i, std::move(dh), gradients, s);
  }
  return gradients.x;
}

void Block::backward_weight(nn::Saved& saved) {
  auto& s = static_cast<BlockSaved&>(saved);
  for (size_t i = parts_.size(); i-- > 0;) {
    branch_backward_weight(i, s);
    norm_backward_weight(i, s);
  }
}

at::Tensor Block::backward(const at::Tensor& dy, nn::Saved& saved) {
  if (!tensor_ || !tensor_->overlap()) return Layer::backward(dy, saved);
  auto& s = static_cast<BlockSaved&>(saved);
  Gradients gradients{.sum = dy, .x = dy, .h = {}};
  for (size_t i = parts_.size(); i-- > 0;) {
    nn::Pending dh = parts_[i].branch->start_backward_input(branch_gradient(i, gradients.sum, s), *s.parts[i].branch);
    if (i + 1 < parts_.size()) norm_backward_weight(i + 1, s);
    branch_backward_weight(i, s);
    add_gradient(i, dh(), gradients, s);
  }
  norm_backward_weight(0, s);
  return gradients.x;
}

std::vector<nn::KvCacheLayer> Block::new_caches(int64_t slots, int64_t capacity, const at::TensorOptions& options) const {
  std::vector<nn::KvCacheLayer> caches;
  for (const Part& part : parts_) caches.push_back(part.branch->new_cache(slots, capacity, options));
  return caches;
}

at::Tensor Block::decode(const at::Tensor& x, std::span<const nn::KvCacheLayer> caches, std::span<const nn::CacheSpan> spans) {
  Stream stream{.x = x, .sum = {}, .h = {}};
  for (size_t i = 0; i < parts_.size(); ++i) {
    at::Tensor y = norm_behind(i, parts_[i].branch->decode(read(i, stream, nullptr), caches[i], spans), nullptr);
    stream.sum = stream.sum.defined() ? stream.sum.add_(y) : std::move(y);
  }
  return stream.sum.add_(stream.x);
}

}  // namespace lockstep::model
