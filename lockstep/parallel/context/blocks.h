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

// Tokens of a rank: rows [first, first + count) of each of its sequences.
struct TokenRows {
  int rank = 0;
  int64_t first = 0, count = 0;
};

// A block: one contiguous tensor of some tokens, as large on every rank.
class KeyBlocks {
 public:
  using Made = nn::KeySource::Made;
  virtual ~KeyBlocks() = default;
  virtual at::Tensor own(int64_t first, int64_t count) const = 0;  // of those of the tokens here
  // Adds `sum` of own(first, count) to those rows of `all`, of all tokens here.
  virtual void add_rows(const at::Tensor& all, const at::Tensor& sum, int64_t first, int64_t count) const = 0;
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
  at::Tensor own(int64_t first, int64_t count) const override;
  void add_rows(const at::Tensor& all, const at::Tensor& sum, int64_t first, int64_t count) const override;
  Made make(const at::Tensor& block) override;
  void backward(const at::Tensor& block, const Attend& attend, const at::Tensor& sum) override;
  Made split(const at::Tensor& block) const;  // views [B, its tokens, KV, ...]

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
  at::Tensor own(int64_t first, int64_t count) const override {
    return count == own_.size(1) ? own_ : own_.narrow(1, first, count).clone(at::MemoryFormat::Contiguous);
  }
  void add_rows(const at::Tensor& all, const at::Tensor& sum, int64_t first, int64_t count) const override {
    all.narrow(1, first, count).add_(sum);
  }
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
  // All that `rank` has, and some: adds what the queries see of them.
  TokenRows all_of(int rank) const { return {.rank = rank, .first = 0, .count = tokens()}; }
  void attend(const TokenRows& keys, const at::Tensor& block, KeyBlocks& blocks, nn::SeenSums& seen) const;
  // dout [B, T, H V] contiguous; `dq` [B, T, H, K] fp32 is added to. -> the gradient of the block, fp32; undefined where nobody sees any.
  // `sum`: where it goes; undefined: room of its own.
  struct Backward {
    at::Tensor dout;
    nn::SeenSums seen;
    at::Tensor dq;
  };
  at::Tensor attend_backward(const TokenRows& keys, const at::Tensor& block, KeyBlocks& blocks, const Backward& pass, at::Tensor sum = {}) const;
  int64_t tokens() const { return places_.index.size(1); }
  int64_t window() const { return options_.window; }
  Backward begin_backward(const at::Tensor& dout, const at::Tensor& out, const at::Tensor& logsumexp) const;

 private:
  nn::KeySpans spans(const TokenRows& keys) const;
  nn::AttentionRectangle rectangle(const KeyBlocks::Made& keys, const nn::KeySpans& spans) const;
  const at::Tensor q_;
  const nn::TokenPlaces& places_;
  const nn::ContextAttention::Options options_;
};

}  // namespace lockstep::parallel
