// The memory of embedding and head, step by step as nn/ and parallel/ allocate and release.
#include <algorithm>

#include "lockstep/arch/cost_memory.h"

namespace lockstep::arch {
namespace {

// Ids relative to the first one here, and which of them are: of a vocabulary that is cut.
int64_t local_ids(const Sizes& s) { return s.input.tensor.size > 1 ? (2 * 8 + 3) * s.tokens : 0; }

// dy: what goes with it, which in action B without dropout its caller holds.
void embedding_backward_weight(const Sizes& s, int64_t dy, Memory& memory) {
  const int64_t fp32_rows = s.fp32 ? 0 : 4 * s.model.hidden;  // of bf16 rows that are added up, a copy
  if (s.model.traits().learned_positions)
    memory.scratch(s.sequence ? s.rows * fp32_rows : 4 * s.input.seq_len * s.model.hidden);
  memory.take(s.whole);
  memory.scratch(s.gathered() - s.whole);
  if (s.sequence) memory.drop(dy);
  // With a cut vocabulary the rows of tokens that live here: that share of them, if tokens are spread evenly.
  const int64_t size = s.input.tensor.size, here = s.tokens / size;
  if (size > 1) memory.take(here * s.model.hidden * s.input.element_size + 2 * 8 * s.tokens);
  memory.scratch((size > 1 ? here : s.tokens) * fp32_rows);
}

}  // namespace

void embedding_memory(const Sizes& s, LayerCost& cost) {
  cost.kept = s.mask;
  cost.output = s.hidden;
  Memory forward(0);
  forward.take(s.sequence ? s.whole : s.hidden);
  forward.scratch(local_ids(s));
  if (s.sequence) {
    forward.take(s.hidden), forward.scratch(s.scattered() - s.whole), forward.drop(s.whole);
    if (s.model.traits().learned_positions) forward.scratch(s.hidden);
  }
  dropout_forward(s, forward);
  cost.forward_workspace = forward.peak() - cost.kept - cost.output;
  const int64_t before = cost.kept + cost.output;
  Memory memory(before);
  dropout_backward(s, memory);
  apart(memory, before, {.dx = 0, .dy = s.mask > 0 ? cost.output : 0}, cost);
  Memory weight(cost.held);
  embedding_backward_weight(s, s.hidden, weight);
  cost.weight_workspace = weight.peak() - cost.held;
  embedding_backward_weight(s, s.mask > 0 ? s.hidden : 0, memory);
  cost.backward_workspace = memory.peak() - before;  // no dx
}

void head_memory(const Sizes& s, LayerCost& cost) {
  const ModelConfig& m = s.model;
  const int64_t tp = s.input.tensor.size;
  const int64_t rows = std::min(head_chunk_rows(mesh::padded_part(s.vocab_size, tp)), s.tokens);  // of a chunk
  cost.kept = s.hidden;  // x
  Memory backward(cost.kept);
  norm_forward(s, backward);
  if (s.sequence) backward.take(s.whole), backward.scratch(s.gathered() - s.whole), backward.drop(s.hidden);
  backward.take(kLossBytes);
  const int64_t logits = rows * m.vocab_size * s.input.element_size;  // overwritten with their gradient
  backward.take(logits);
  backward.scratch(product_scratch(s, {.rows = rows, .terms = m.hidden, .columns = m.vocab_size, .weight = Weight::kRows}));
  const int64_t softmax = tp > 1 ? 4 * 3 * rows * (1 + tp) : 0;  // of this rank and of all
  backward.scratch(softmax + 4 * rows + kLossBytes);  // losses of rows, and their sum
  if (!s.fp32) backward.scratch(2 * m.vocab_size * m.hidden + kPackingBytes);
  const int64_t gradient = rows * m.hidden * s.input.element_size;  // of the chunk's rows
  backward.take(gradient);
  backward.scratch(product_scratch(s, {.rows = rows, .terms = m.vocab_size, .columns = m.hidden, .weight = Weight::kColumns}));
  backward.drop(gradient);
  backward.drop(logits);
  if (s.sequence) backward.take(s.hidden), backward.scratch(s.scattered() - s.whole), backward.drop(s.whole);
  norm_backward_input(s, backward);
  const int64_t before = cost.kept + s.hidden;  // with dx
  apart(backward, before, {.dx = s.hidden, .dy = kLossBytes}, cost);
  Memory weight(cost.held);
  norm_backward_weight(s, weight);
  cost.weight_workspace = weight.peak() - cost.held;
  norm_backward_weight(s, backward);
  cost.backward_workspace = backward.peak() - before;
}

}  // namespace lockstep::arch
