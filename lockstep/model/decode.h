// Generation with a key/value cache: the prompt at once, then token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/model/block.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/head.h"
#include "lockstep/nn/layer.h"

namespace lockstep::model {

// Keys and values of every block for `batch` sequences that are `length` tokens long so far; at most `capacity`.
class KvCache {
 public:
  KvCache(const arch::ModelConfig& model, int64_t batch, int64_t capacity, const at::TensorOptions& options);

  int64_t batch() const { return batch_; }
  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  int64_t bytes() const;
  void clear() { length_ = 0; }

 private:
  friend class Decoder;
  std::vector<nn::KvCacheLayer> layers_;
  int64_t batch_ = 0;
  int64_t capacity_ = 0;
  int64_t length_ = 0;
};

// The training layers' parts over the same parameters, without dropout. Holds views of the parameters, not copies.
class Decoder {
 public:
  Decoder(const arch::ModelConfig& model, nn::ParameterSource& source);

  // A cache on the parameters' device and in their dtype. capacity <= max_seq_len.
  KvCache new_cache(int64_t batch, int64_t capacity) const;

  // Appends tokens [B, T] int64 to every sequence and returns the logits after the last one, fp32 [B, V]. Into an empty
  // cache T is the prompt's length, the same for all sequences; afterwards T = 1.
  at::Tensor append(const at::Tensor& tokens, KvCache& cache);

 private:
  arch::ModelConfig model_;
  at::TensorOptions options_;
  std::unique_ptr<nn::Embedding> embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<nn::Head> head_;
};

}  // namespace lockstep::model
