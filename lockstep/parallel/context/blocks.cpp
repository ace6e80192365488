#include "lockstep/parallel/context/blocks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace lockstep::parallel {

at::Tensor zeros_fp32(at::IntArrayRef shape, const at::Tensor& like) { return at::zeros(shape, like.options().dtype(at::kFloat)); }

DenseBlocks::DenseBlocks(const at::Tensor& k, const at::Tensor& v, std::vector<int64_t> repeat) : k_(k), v_(v), repeat_(std::move(repeat)) {}

at::Tensor DenseBlocks::own(int64_t first, int64_t count) const {
  const at::Tensor k = k_.narrow(1, first, count), v = v_.narrow(1, first, count);
  const at::Tensor block = at::empty({k.numel() + v.numel()}, k.options());
  const Made views = split(block);
  views.k.copy_(k);
  views.v.copy_(v);
  return block;
}

DenseBlocks::Made DenseBlocks::split(const at::Tensor& block) const {
  const int64_t batch = k_.size(0), heads = k_.size(2), key = k_.size(3), value = v_.size(3);
  const int64_t tokens = block.numel() / (batch * heads * (key + value)), keys = batch * tokens * heads * key;
  return {.k = block.narrow(0, 0, keys).view({batch, tokens, heads, key}),
          .v = block.narrow(0, keys, block.numel() - keys).view({batch, tokens, heads, value})};
}

void DenseBlocks::add_rows(const at::Tensor& all, const at::Tensor& sum, int64_t first, int64_t count) const {
  const Made to = split(all), from = split(sum);
  to.k.narrow(1, first, count).add_(from.k);
  to.v.narrow(1, first, count).add_(from.v);
}

DenseBlocks::Made DenseBlocks::make(const at::Tensor& block) {
  const Made views = split(block);
  if (repeat_.empty()) return views;
  return {.k = repeated(views.k), .v = repeated(views.v)};
}

void DenseBlocks::backward(const at::Tensor& block, const Attend& attend, const at::Tensor& sum) {
  const Made sums = split(sum);
  if (repeat_.empty()) return attend(split(block), sums);
  const Made keys = make(block);
  const Made gradients{.k = zeros_fp32(keys.k.sizes(), keys.k), .v = zeros_fp32(keys.v.sizes(), keys.v)};
  attend(keys, gradients);
  add_repeated(sums.k, gradients.k);
  add_repeated(sums.v, gradients.v);
}

at::Tensor DenseBlocks::repeated(const at::Tensor& heads) const {
  const at::Tensor all = at::empty({heads.size(0), heads.size(1), static_cast<int64_t>(repeat_.size()), heads.size(3)}, heads.options());
  for (size_t i = 0; i < repeat_.size(); ++i) all.select(2, static_cast<int64_t>(i)).copy_(heads.select(2, repeat_[i]));
  return all;
}

void DenseBlocks::add_repeated(const at::Tensor& sum, const at::Tensor& repeated) const {
  for (size_t i = 0; i < repeat_.size(); ++i) sum.select(2, repeat_[i]).add_(repeated.select(2, static_cast<int64_t>(i)));
}

void SourceBlocks::backward(const at::Tensor& block, const Attend& attend, const at::Tensor& sum) {
  const Made keys = source_.make(block);
  const Made gradients{.k = zeros_fp32(keys.k.sizes(), keys.k), .v = zeros_fp32(keys.v.sizes(), keys.v)};
  attend(keys, gradients);
  source_.backward(block, gradients, sum);
}

bool sees_any(const nn::KeySpans& spans) {
  const int32_t *first = spans.first.const_data_ptr<int32_t>(), *last = spans.last.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < spans.first.numel(); ++i)
    if (first[i] < last[i]) return true;
  return false;
}

QueriesHere::QueriesHere(const at::Tensor& q, const nn::TokenPlaces& places, const nn::ContextAttention::Options& options)
    : q_(q), places_(places), options_(options) {}

nn::AttentionRectangle QueriesHere::rectangle(const KeyBlocks::Made& keys, const nn::KeySpans& spans) const {
  return {.q = q_.transpose(1, 2), .k = keys.k.transpose(1, 2), .v = keys.v.transpose(1, 2), .spans = spans, .scale = options_.scale};
}

// Of some of a rank's tokens, counted from the first of them.
nn::KeySpans QueriesHere::spans(const TokenRows& keys) const {
  const nn::KeySpans spans = nn::spans_of(places_, keys.rank, options_.window);
  if (keys.count == tokens()) return spans;
  for (const at::Tensor& x : {spans.first, spans.last}) x.sub_(keys.first).clamp_(0, keys.count);
  return spans;
}

void QueriesHere::attend(const TokenRows& of, const at::Tensor& block, KeyBlocks& blocks, nn::SeenSums& seen) const {
  const nn::KeySpans spans = this->spans(of);
  if (seen.out.defined() && !sees_any(spans)) return;
  const KeyBlocks::Made keys = blocks.make(block);
  if (!seen.out.defined()) seen = nn::nothing_seen(q_.transpose(1, 2), keys.v.size(3));
  nn::attend(rectangle(keys, spans), seen);
}

QueriesHere::Backward QueriesHere::begin_backward(const at::Tensor& dout, const at::Tensor& out, const at::Tensor& logsumexp) const {
  return {.dout = dout.view(out.sizes()), .seen = {.out = out, .logsumexp = logsumexp}, .dq = zeros_fp32(q_.sizes(), q_)};
}

at::Tensor QueriesHere::attend_backward(const TokenRows& of, const at::Tensor& block, KeyBlocks& blocks, const Backward& pass,
                                        at::Tensor sum) const {
  const nn::KeySpans spans = this->spans(of);
  if (!sees_any(spans)) return sum;
  if (!sum.defined()) sum = zeros_fp32(block.sizes(), block);
  blocks.backward(
      block,
      [&](const KeyBlocks::Made& keys, const KeyBlocks::Made& gradients) {
        nn::attend_backward(pass.dout, pass.seen, rectangle(keys, spans), {.dq = pass.dq, .dk = gradients.k, .dv = gradients.v});
      },
      sum);
  return sum;
}

}  // namespace lockstep::parallel
