// Embedding and head, in the order in which nn/ and parallel/ allocate and release.
#include <algorithm>
#include <utility>

#include "lockstep/arch/layer_builder.h"

namespace lockstep::arch {
namespace {

constexpr int64_t kLossBytes = 4;  // a sum of losses
constexpr PhaseSet kAllForwards = Phase::kForward | Phase::kEvaluate;

// Rows of the vocabulary's gradient, and of positions where they are added one by one: of bf16 ones a copy in fp32.
int64_t rows_scratch(const Sizes& s, int64_t rows) { return s.fp32 ? 0 : rows * 4 * s.model.hidden; }

int embedding_forward(LayerBuilder& b, int mask) {
  const Sizes& s = b.s;
  const bool positions = s.model.traits().learned_positions;
  // Ids relative to the first one here, and which of them are: of a vocabulary that is cut.
  const int64_t local_ids = s.input.tensor.size > 1 ? (2 * 8 + 3) * s.tokens : 0;
  // The rows of positions, where each token has its own.
  const int64_t of_positions = positions && s.input.places && !s.sequence ? s.hidden : 0;
  const int y = b.hidden(), whole = b.whole(), sum = b.reduce_output("", CallPhase::kForward);
  b.take(kAllForwards, s.sequence ? whole : y);
  b.kernel(kAllForwards, std::max(local_ids, of_positions), (positions ? 3 : 2) * s.hidden);
  if (s.sequence) b.take(kAllForwards, y);
  b.communicate(kAllForwards, sum, b.copy_to_scatter());
  b.drop(kAllForwards, whole);
  if (s.sequence && positions) b.kernel(kAllForwards, s.hidden);
  b.dropout_forward(kAllForwards, kAllForwards, mask, /*traffic=*/0);
  b.drop(Phase::kEvaluate, mask);
  return y;
}

void embedding_backward(LayerBuilder& b, int mask) {
  const Sizes& s = b.s;
  const int64_t ranks = s.input.tensor.size;
  // With a cut vocabulary the rows of tokens that live here: that share of them, if tokens are spread evenly.
  const int64_t here = s.tokens / ranks;
  const int masked = b.dropout_backward(mask), dy = b.hidden(), whole = b.whole();
  const int gather = b.gather_rows("", CallPhase::kBackward);
  const auto drop_dy = [&] {  // in B without dropout the caller holds it
    b.drop(mask == kNoValue ? PhaseSet(Phase::kWeight) : kWeights, mask == kNoValue ? dy : masked);
  };
  if (s.model.traits().learned_positions)
    b.kernel(kWeights, s.sequence || s.input.places ? rows_scratch(s, s.rows) : 4 * s.length * s.model.hidden);
  b.take(kWeights, whole);
  b.communicate(kWeights, gather, b.copy_to_gather());
  if (s.sequence) drop_dy();
  const int rows_here = ranks == 1 ? kNoValue : b.value(here * s.model.hidden * s.input.element_size);
  const int ids_here = ranks == 1 ? kNoValue : b.value(2 * 8 * s.tokens);
  b.take(kWeights, rows_here), b.take(kWeights, ids_here);
  const int64_t scaled = s.model.embedding_scale != 1 && ranks == 1 ? s.hidden : 0;  // a copy; of rows here their own
  b.kernel(kWeights, scaled + rows_scratch(s, here));
  b.drop(kWeights, rows_here), b.drop(kWeights, ids_here), b.drop(kWeights, whole);
  if (!s.sequence) drop_dy();
}

constexpr PhaseSet kLoss = kInputs | Phase::kEvaluate;

// The loss, chunk by chunk: the steps of one. The products are those of all rows.
void loss(LayerBuilder& b, int64_t chunk_rows, int softmax) {
  const Sizes& s = b.s;
  const ModelConfig& m = s.model;
  const int64_t tp = s.input.tensor.size, rows = std::min(chunk_rows, s.tokens);
  const int64_t of_all = tp > 1 ? 4 * 3 * rows * (1 + tp) : 0;  // maxima and sums of this rank and of all
  const int logits = b.value(rows * m.vocab_size * s.input.element_size);  // overwritten with their gradient
  const int gradient = b.value(rows * m.hidden * s.input.element_size);
  b.take(kLoss, b.value(kLossBytes));
  b.take(kLoss, logits);
  b.product(kLoss, {.name = "logits", .m = s.tokens, .n = m.vocab_size, .k = m.hidden}, product_scratch(s.input, rows, m.hidden));
  b.communicate(kLoss, softmax, 0);
  // Softmax cross-entropy: losses of rows, and their sum; logits are read and written.
  b.kernel(kLoss, of_all + 4 * rows + kLossBytes, 2 * s.activations(m.vocab_size));
  b.product(kInputs, {.name = "logits", .role = Product::Role::kWeightGradient, .m = m.vocab_size, .n = m.hidden, .k = s.tokens},
            weight_gradient_scratch(s.input, m.hidden, m.vocab_size));
  b.take(kInputs, gradient);
  b.product(kInputs, {.name = "logits", .role = Product::Role::kInputGradient, .m = s.tokens, .n = m.hidden, .k = m.vocab_size},
            product_scratch(s.input, rows, m.vocab_size, m.hidden));
  b.drop(kInputs, gradient);
  b.drop(kLoss, logits);
}

}  // namespace

LayerDescription describe_embedding(const ModelConfig& model, const CostInput& input) {
  LayerBuilder b(model, input);
  const int mask = b.mask({"dropout mask", Recompute::kFull});
  b.d.output = embedding_forward(b, mask);
  embedding_backward(b, mask);
  return std::move(b.d);
}

// All in I (nn/head.h); F keeps x and does nothing, that of an evaluation makes the loss.
LayerDescription describe_head(const ModelConfig& model, const CostInput& input) {
  LayerBuilder b(model, input);
  const Sizes& s = b.s;
  const int64_t chunk_rows = head_chunk_rows(model.vocab_size, input.tensor.size), a_row = 3 * input.tensor.size;
  const int gather = b.gather_rows("", CallPhase::kForward);
  const int softmax = b.call({.phase = CallPhase::kSoftmax, .collective = Collective::kAllGather, .numel = a_row * s.tokens,
                              .element_size = 4, .at_once = a_row * chunk_rows});
  const int sum = b.reduce_output("", CallPhase::kBackward);
  const int x = b.d.input = b.hidden({"input", Recompute::kFull});
  const int y = b.hidden(), whole = b.whole(), dx = b.hidden();
  // The gradient of the norm's output takes its place, or comes of that of all rows.
  const LayerBuilder::Norm norm{.x = x, .y = y, .statistics = b.statistics(), .dy = s.sequence ? b.hidden() : y};
  b.norm_forward(kLoss, Phase::kEvaluate, norm);
  b.take(kLoss, whole);
  b.communicate(kLoss, gather, b.copy_to_gather());
  if (s.sequence) b.drop(kLoss, y);
  loss(b, chunk_rows, softmax);
  if (s.sequence) b.take(kInputs, norm.dy);
  b.communicate(kInputs, sum, b.copy_to_scatter());
  b.drop(kLoss, whole);
  if (!s.sequence) b.drop(Phase::kEvaluate, y);
  b.take(kInputs, dx);
  b.kernel(kInputs, 0, 2 * s.hidden);  // of the norm
  b.norm_backward_weight(norm);
  return std::move(b.d);
}

}  // namespace lockstep::arch
