#include "lockstep/model/decode.h"

#include <ATen/ops/empty.h>

#include "lockstep/base/check.h"
#include "lockstep/model/parts.h"

namespace lockstep::model {

KvCache::KvCache(const arch::ModelConfig& model, int64_t batch, int64_t capacity, const at::TensorOptions& options)
    : batch_(batch), capacity_(capacity) {
  for (int64_t i = 0; i < model.layers; ++i) {
    const auto empty = [&] { return at::empty({batch, capacity, model.kv_heads, model.head_size}, options); };
    layers_.push_back({.k = empty(), .v = empty()});
  }
}

int64_t KvCache::bytes() const {
  int64_t bytes = 0;
  for (const nn::KvCacheLayer& layer : layers_) bytes += static_cast<int64_t>(layer.k.nbytes() + layer.v.nbytes());
  return bytes;
}

Decoder::Decoder(const arch::ModelConfig& model, nn::ParameterSource& source)
    : model_(model), options_(source.parameter("embed.tokens.weight").value.options()) {
  const ModelOptions options{.training = false};
  PartsBuilder parts(model, source, options);
  embedding_ = parts.embedding();
  for (int i = 0; i < model.layers; ++i) blocks_.push_back(parts.block(i));
  head_ = parts.head();
}

KvCache Decoder::new_cache(int64_t batch, int64_t capacity) const {
  LOCKSTEP_CHECK(capacity <= model_.max_seq_len, "capacity ", capacity, ", max_seq_len ", model_.max_seq_len);
  return KvCache(model_, batch, capacity, options_);
}

at::Tensor Decoder::append(const at::Tensor& tokens, KvCache& cache) {
  LOCKSTEP_CHECK_EQ(tokens.size(0), cache.batch());
  LOCKSTEP_CHECK(cache.length() + tokens.size(1) <= cache.capacity(), cache.length(), " + ", tokens.size(1), " > ",
                 cache.capacity());
  at::Tensor x = embedding_->embed(tokens, cache.length());
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->decode(x, cache.layers_[i], cache.length());
  cache.length_ += tokens.size(1);
  return head_->logits(x.select(1, x.size(1) - 1).contiguous());
}

}  // namespace lockstep::model
