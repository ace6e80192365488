// What LibTorch's attention kernels of a GPU ask of heads: as many of keys as of queries, rows of whole 16 bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lockstep::nn {

// [B, KV, S, K] -> [B, H, S, K], each head repeated H / KV times; itself where H = KV.
inline at::Tensor repeat_heads(const at::Tensor& x, int64_t heads) {
  if (x.size(1) == heads) return x;
  const int64_t group = heads / x.size(1);
  return x.unsqueeze(2).expand({-1, -1, group, -1, -1}).reshape({x.size(0), heads, x.size(2), x.size(3)});
}

// The sum over each group of repeated heads: the backward of repeat_heads.
inline at::Tensor sum_heads(const at::Tensor& dx, int64_t kv_heads) {
  if (dx.size(1) == kv_heads) return dx;
  return dx.reshape({dx.size(0), kv_heads, -1, dx.size(2), dx.size(3)}).sum(2);
}

// Zeros behind K change no score and get no gradient that counts.
inline at::Tensor widened(const at::Tensor& x, int64_t width) {
  const int64_t unit = 16 / x.element_size(), whole = (std::max(x.size(-1), width) + unit - 1) / unit * unit;
  return whole == x.size(-1) ? x : at::constant_pad_nd(x, {0, whole - x.size(-1)});
}

// q, k and v as wide as the wider of them.
struct Padded {
  int64_t width;
  at::Tensor operator()(const at::Tensor& x) const { return widened(x, width); }
};
inline Padded padding_of(const at::Tensor& q, const at::Tensor& v) { return {std::max(q.size(-1), v.size(-1))}; }

// Of scores, by the head's own size where nothing is given.
inline double scale_of(const at::Tensor& q, double given) { return given > 0 ? given : 1 / std::sqrt(static_cast<double>(q.size(-1))); }

}  // namespace lockstep::nn
