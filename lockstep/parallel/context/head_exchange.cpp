#include "lockstep/parallel/context/head_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace lockstep::parallel {

using Heads = nn::ContextAttention::Heads;

HeadExchange::HeadExchange(ContextGroup& group, ContextGroup::Over over, const program::CallId& calls, const Sizes& sizes,
                           const SharedTokens& tokens)
    : group_(group),
      over_(over),
      calls_(calls),
      sizes_(sizes),
      parts_(sizes.heads, sizes.kv_heads, group.over(over).size()),
      batch_(tokens.rows.size(0)),
      tokens_(tokens.rows.size(1) / parts_.ranks()),
      rows_(tokens.rows.view({-1})) {}

Heads HeadExchange::split(const at::Tensor& rows) const {
  const int64_t q = parts_.heads_each() * sizes_.key, k = parts_.kv_heads_each() * sizes_.key;
  const auto heads = [&](int64_t begin, int64_t width, int64_t head) {
    return rows.narrow(-1, begin, width).unflatten(-1, {width / head, head});
  };
  return {.q = heads(0, q, sizes_.key), .k = heads(q, k, sizes_.key),
          .v = heads(q + k, parts_.kv_heads_each() * sizes_.value, sizes_.value)};
}

at::Tensor HeadExchange::room(const at::Tensor& like, int64_t width) const {
  return at::zeros({parts_.ranks(), batch_, tokens_, width}, like.options());
}

at::Tensor HeadExchange::in_order(const at::Tensor& parts) const {
  return parts.view({-1, parts.size(-1)}).index_select(0, rows_.to(parts.device())).view({batch_, -1, parts.size(-1)});
}

at::Tensor HeadExchange::by_member(const at::Tensor& rows) const {
  const at::Tensor parts = at::empty({parts_.ranks(), batch_, tokens_, rows.size(-1)}, rows.options());
  parts.view({-1, rows.size(-1)}).index_copy_(0, rows_.to(rows.device()), rows.view({-1, rows.size(-1)}));
  return parts;
}

at::Tensor HeadExchange::to_heads(const Heads& heads, program::CallPhase phase) const {
  at::Tensor parts = room(heads.q, row_width());
  for (int rank = 0; rank < parts_.ranks(); ++rank) {
    const Heads part = split(parts.select(0, rank));
    const mesh::Range q = parts_.heads_of(rank), kv = parts_.kv_heads_of(rank);
    part.q.narrow(2, 0, q.size()).copy_(heads.q.narrow(2, q.begin, q.size()));
    part.k.narrow(2, 0, kv.size()).copy_(heads.k.narrow(2, kv.begin, kv.size()));
    part.v.narrow(2, 0, kv.size()).copy_(heads.v.narrow(2, kv.begin, kv.size()));
  }
  parts = exchange(parts, phase);
  return in_order(parts);
}

void HeadExchange::gradients_to_tokens(const at::Tensor& rows, program::CallPhase phase, const nn::AttentionCoreGrads& grads) const {
  const at::Tensor parts = exchange(by_member(rows), phase);
  const auto fp32 = parts.options().dtype(at::kFloat);
  const at::Tensor dk = at::zeros(grads.dk.sizes(), fp32), dv = at::zeros(grads.dv.sizes(), fp32);
  for (int rank = 0; rank < parts_.ranks(); ++rank) {
    const Heads part = split(parts.select(0, rank));
    const mesh::Range q = parts_.heads_of(rank), kv = parts_.kv_heads_of(rank);
    grads.dq.narrow(2, q.begin, q.size()).copy_(part.q.narrow(2, 0, q.size()));
    dk.narrow(2, kv.begin, kv.size()).add_(part.k.narrow(2, 0, kv.size()));
    dv.narrow(2, kv.begin, kv.size()).add_(part.v.narrow(2, 0, kv.size()));
  }
  grads.dk.copy_(dk);
  grads.dv.copy_(dv);
}

at::Tensor HeadExchange::outputs_to_heads(const at::Tensor& outputs, program::CallPhase phase) const {
  const int64_t width = parts_.heads_each() * sizes_.value;
  at::Tensor parts = room(outputs, width);
  for (int rank = 0; rank < parts_.ranks(); ++rank) {
    const mesh::Range q = parts_.heads_of(rank);
    parts.select(0, rank).narrow(-1, 0, q.size() * sizes_.value).copy_(outputs.narrow(-1, q.begin * sizes_.value, q.size() * sizes_.value));
  }
  parts = exchange(parts, phase);
  return in_order(parts).view({batch_, -1, parts_.heads_each(), sizes_.value});
}

at::Tensor HeadExchange::outputs_to_tokens(const at::Tensor& outputs, program::CallPhase phase) const {
  const at::Tensor parts = exchange(by_member(outputs.view({batch_, outputs.size(1), -1})), phase);
  const at::Tensor all = at::empty({batch_, tokens_, sizes_.heads * sizes_.value}, parts.options());
  for (int rank = 0; rank < parts_.ranks(); ++rank) {
    const mesh::Range q = parts_.heads_of(rank);
    all.narrow(-1, q.begin * sizes_.value, q.size() * sizes_.value).copy_(parts.select(0, rank).narrow(-1, 0, q.size() * sizes_.value));
  }
  return all;
}

}  // namespace lockstep::parallel
