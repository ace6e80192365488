#include "lockstep/model/decode.h"

#include <ATen/ops/cat.h>

#include "lockstep/base/check.h"
#include "lockstep/model/parts.h"

namespace lockstep::model {

void KvCache::truncate(int64_t slot, int64_t length) {
  LOCKSTEP_CHECK(0 <= length && length <= this->length(slot), "length ", length, " of ", this->length(slot));
  lengths_[static_cast<size_t>(slot)] = length;
}

Decoder::Decoder(const arch::ModelConfig& model, nn::ParameterSource& source, parallel::TensorGroup* tensor,
                 parallel::ExpertGroup* experts)
    : model_(model), options_(source.parameter("embed.tokens.weight").value.options()) {
  const ModelOptions options{.training = false, .tensor = tensor, .experts = experts};
  PartsBuilder parts(model, source, options);
  embedding_ = parts.embedding();
  for (int i = 0; i < model.layers; ++i) blocks_.push_back(parts.block(i));
  head_ = parts.head();
}

KvCache Decoder::new_cache(int64_t slots, int64_t capacity) const {
  LOCKSTEP_CHECK(capacity <= model_.max_seq_len, "capacity ", capacity, ", max_seq_len ", model_.max_seq_len);
  KvCache cache(slots, capacity);
  for (const auto& block : blocks_) cache.blocks_.push_back(block->new_caches(slots, capacity, options_));
  return cache;
}

at::Tensor Decoder::append(const at::Tensor& tokens, std::span<const int64_t> slots, KvCache& cache) {
  LOCKSTEP_CHECK_EQ(tokens.size(0), static_cast<int64_t>(slots.size()));
  std::vector<nn::CacheSpan> spans;
  for (const int64_t slot : slots) {
    spans.push_back({.slot = slot, .start = cache.length(slot)});
    LOCKSTEP_CHECK(spans.back().start + tokens.size(1) <= cache.capacity(), spans.back().start, " + ", tokens.size(1), " > ",
                   cache.capacity());
  }
  std::vector<at::Tensor> rows;
  for (size_t b = 0; b < spans.size(); ++b)
    rows.push_back(embedding_->embed(tokens.narrow(0, static_cast<int64_t>(b), 1), spans[b].start));
  at::Tensor x = at::cat(rows);
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->decode(x, cache.blocks_[i], spans);
  for (const int64_t slot : slots) cache.lengths_[static_cast<size_t>(slot)] += tokens.size(1);
  return head_->logits(x.select(1, x.size(1) - 1).contiguous());
}

}  // namespace lockstep::model
