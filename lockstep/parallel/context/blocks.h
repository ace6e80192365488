// Keys and values of the tokens of one rank as one tensor that travels, and their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/nn/attention_spans.h"
#include "lockstep/nn/context_attention.h"

namespace lockstep::parallel {

at::Tensor zeros_fp32(at::IntArrayRef shape, const at::Tensor& like);  // where `like` is

// A block: one contiguous tensor, as large on every rank.
class KeyBlocks {
 public:
  using Made = nn::KeySource::Made;
  virtual ~KeyBlocks() = default;
  virtual at::Tensor own() const = 0;
  virtual Made make(const at::Tensor& block) = 0;
  // `attend` adds to gradients, fp32 and contiguous, of the keys and values that it is given; they end in `sum`, fp32, shaped like the
  // block and zero before.
  using Attend = std::function<void(const Made& keys, const Made& gradients)>;
  virtual void backward(const at::Tensor& block, const Attend& attend, const at::Tensor& sum) = 0;
};

// Keys and values themselves: all of k, then all of v.
class DenseBlocks : public KeyBlocks {
 public:
  // k [B, T, KV, K], v [B, T, KV, V]. `repeat`: by query head the key head that it reads, where these are not equal groups one behind
  // the other; keys are repeated where they are used, then, one for each query head. Empty: they are.
  DenseBlocks(const at::Tensor& k, const at::Tensor& v, std::vector<int64_t> repeat = {});
  at::Tensor own() const override;
  Made make(const at::Tensor& block) override;
  void backward(const at::Tensor& block, const Attend& attend, const at::Tensor& sum) override;
  Made split(const at::Tensor& block) const;  // views [B, T, KV, ...]

 private:
  at::Tensor repeated(const at::Tensor& heads) const;
  void add_repeated(const at::Tensor& sum, const at::Tensor& repeated) const;

  const at::Tensor k_, v_;
  const std::vector<int64_t> repeat_;
};

// What keys and values are made of.
class SourceBlocks : public KeyBlocks {
 public:
  SourceBlocks(nn::KeySource& source, const at::Tensor& own) : source_(source), own_(own) {}
  at::Tensor own() const override { return own_; }
  Made make(const at::Tensor& block) override { return source_.make(block); }
  void backward(const at::Tensor& block, const Attend& attend, const at::Tensor& sum) override;

 private:
  nn::KeySource& source_;
  const at::Tensor own_;
};

// Whether any query sees a key.
bool sees_any(const nn::KeySpans& spans);

// Attention of queries here to one block after the other.
class QueriesHere {
 public:
  // q [B, T, H, K]
  QueriesHere(const at::Tensor& q, const nn::TokenPlaces& places, const nn::ContextAttention::Options& options);
  // Those that `rank` has: adds what the queries see of them.
  void attend(int rank, const at::Tensor& block, KeyBlocks& blocks, nn::SeenSums& seen) const;
  // dout [B, T, H V] contiguous; `dq` [B, T, H, K] fp32 is added to. -> the gradient of the block, fp32; undefined where nobody sees any.
  // `sum`: where it goes; undefined: room of its own.
  struct Backward {
    at::Tensor dout;
    nn::SeenSums seen;
    at::Tensor dq;
  };
  at::Tensor attend_backward(int rank, const at::Tensor& block, KeyBlocks& blocks, const Backward& pass, at::Tensor sum = {}) const;
  int64_t tokens() const { return places_.index.size(1); }
  int64_t window() const { return options_.window; }
  Backward begin_backward(const at::Tensor& dout, const at::Tensor& out, const at::Tensor& logsumexp) const;

 private:
  nn::AttentionRectangle rectangle(const KeyBlocks::Made& keys, const nn::KeySpans& spans) const;
  const at::Tensor q_;
  const nn::TokenPlaces& places_;
  const nn::ContextAttention::Options options_;
};

}  // namespace lockstep::parallel
