#include "lockstep/model/decode.h"

#include <ATen/ops/cat.h>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/base/check.h"
#include "lockstep/model/parts.h"
#include "lockstep/parallel/context/piece_exchange.h"

namespace lockstep::model {

bool KvCache::can_truncate(int64_t slot, int64_t length) const { return !has_states_ || length == 0 || length == this->length(slot); }

void KvCache::truncate(int64_t slot, int64_t length) {
  LOCKSTEP_CHECK(0 <= length && length <= this->length(slot), "length ", length, " of ", this->length(slot));
  LOCKSTEP_CHECK(can_truncate(slot, length), "a state behind ", this->length(slot), " tokens is not taken back to ", length);
  lengths_[static_cast<size_t>(slot)] = length;
  if (!owners_.empty()) owners_[static_cast<size_t>(slot)].truncate(length);
}

int64_t KvCache::bytes() const {
  int64_t bytes = 0;
  for (const std::vector<nn::KvCacheLayer>& block : blocks_)
    for (const nn::KvCacheLayer& layer : block) {
      if (layer.k.defined()) bytes += static_cast<int64_t>(layer.k.nbytes() + (layer.v.is_same(layer.k) ? 0 : layer.v.nbytes()));
      if (layer.state.defined()) bytes += static_cast<int64_t>(layer.state.nbytes() + layer.columns.nbytes());
    }
  return bytes;
}

Decoder::Decoder(const arch::ModelConfig& model, nn::ParameterSource& source, parallel::TensorGroup* tensor,
                 parallel::ExpertGroup* experts, parallel::ContextGroup* context)
    : model_(model),
      options_(source.parameter("embed.tokens.weight").value.options()),
      context_(context && context->size() > 1 ? context : nullptr) {
  const ModelOptions options{.training = false, .tensor = tensor, .experts = experts};
  PartsBuilder parts(model, source, options);
  embedding_ = parts.embedding();
  for (int i = 0; i < model.layers; ++i) blocks_.push_back(parts.block(i));
  head_ = parts.head();
}

KvCache Decoder::new_cache(int64_t slots, int64_t capacity) const {
  LOCKSTEP_CHECK(capacity <= model_.max_seq_len, "capacity ", capacity, ", max_seq_len ", model_.max_seq_len);
  KvCache cache(slots, capacity);
  const int64_t here = context_ ? TokenOwners::most(capacity, context_->size()) : capacity;
  for (const auto& block : blocks_) {
    cache.blocks_.push_back(block->new_caches(slots, here, options_));
    for (const nn::KvCacheLayer& layer : cache.blocks_.back()) cache.has_states_ = cache.has_states_ || layer.state.defined();
  }
  if (!context_) return cache;
  cache.owners_.assign(static_cast<size_t>(slots), TokenOwners(context_->size()));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const arch::LayerSpec layer = arch::layer_spec(model_, static_cast<int>(i) + 1);
    const std::vector<arch::Branch> branches = arch::block_branches(model_, layer.index);
    const program::CallId calls = program::call_of_layer(program::Purpose::kLayer, layer);
    for (size_t b = 0; b < branches.size(); ++b) {
      nn::KvCacheLayer& of_branch = cache.blocks_[i][b];
      if (of_branch.k.defined()) of_branch.context = make_decode_context(*context_, calls, branches[b].name);
      if (of_branch.state.defined()) of_branch.pieces = parallel::make_piece_exchange(*context_, calls, branches[b].name);
    }
  }
  return cache;
}

at::Tensor Decoder::append(const at::Tensor& tokens, std::span<const int64_t> slots, KvCache& cache) {
  LOCKSTEP_CHECK_EQ(tokens.size(0), static_cast<int64_t>(slots.size()));
  std::vector<nn::CacheSpan> spans;
  std::vector<TokenOwners*> owners;
  for (const int64_t slot : slots) {
    spans.push_back({.slot = slot, .start = cache.length(slot)});
    LOCKSTEP_CHECK(spans.back().start + tokens.size(1) <= cache.capacity(), spans.back().start, " + ", tokens.size(1), " > ",
                   cache.capacity());
    if (context_) owners.push_back(&cache.owners_[static_cast<size_t>(slot)]);
  }
  ContextStep step;
  step.last_row = tokens.size(1) - 1;
  if (context_) step = context_step(owners, tokens.size(1), *context_, options_.device());
  for (size_t b = 0; context_ && b < spans.size(); ++b) spans[b].part = &step.parts[b];
  at::Tensor x = embedded(tokens, spans, step.places != nullptr);
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->decode(x, cache.blocks_[i], spans);
  for (const int64_t slot : slots) cache.lengths_[static_cast<size_t>(slot)] += tokens.size(1);
  x = x.select(1, step.last_row).contiguous();
  return head_->logits(context_ ? rows_of_rank(x, step.last_rank, *context_) : x);
}

at::Tensor Decoder::embedded(const at::Tensor& tokens, std::span<const nn::CacheSpan> spans, bool cut) const {
  std::vector<at::Tensor> rows;
  if (cut) {  // all sequences alike, and from their beginning on: a position is a place
    for (const nn::PositionRun& run : spans.front().part->runs)
      rows.push_back(embedding_->embed(tokens.narrow(1, run.position, run.count), run.position));
    return at::cat(rows, 1);
  }
  for (size_t b = 0; b < spans.size(); ++b)
    rows.push_back(embedding_->embed(tokens.narrow(0, static_cast<int64_t>(b), 1), spans[b].start));
  return at::cat(rows);
}

}  // namespace lockstep::model
