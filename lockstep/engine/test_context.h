// Layouts whose ranks hold sequences in parts, microbatches of documents cut for them, and how far a layout is from its one-rank twin; for
// the tests of this room. The cut is made here once more, from data::split_tokens alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/data/token_split.h"
#include "lockstep/engine/test_training.h"
#include "lockstep/engine/test_values.h"

namespace lockstep::engine::testing {

struct ContextCase {
  Case base{};  // all but cp
  int cp = 2;
  config::ContextKind kind = config::ContextKind::kRing;
  int inner = 1;  // of 2d
  config::ContextSplit split = config::ContextSplit::kZigzag;
  bool documents = false;  // with masks, and positions from the beginning of each
  int64_t global_batch = 4;
  int64_t window = 0;
};

inline std::string text_of(const ContextCase& c) {
  return cat(c.base.preset, " cp ", c.cp, " ", config::name_of(c.kind), " ", config::name_of(c.split), c.documents ? " documents" : "", " S ",
             c.base.seq_len, " tp ", c.base.tp, " dp ", c.base.dp, " zero ", c.base.zero,
             " window ", c.window);
}

inline program::Layout layout_for(const ContextCase& c) {
  program::Layout layout = layout_for(c.base, c.global_batch);
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  for (const mesh::Axis axis : mesh::kAxes) degrees[axis] = layout.mesh.degree(axis);
  degrees[mesh::Axis::kCp] = c.cp;
  layout.mesh = mesh::Mesh(degrees);
  layout.model.sliding_window = c.window;
  layout.context = c.kind;
  layout.context_inner = c.inner;
  layout.context_split = c.split;
  layout.document_mask = layout.reset_positions = c.documents;
  return layout;
}

// Where documents of a sequence begin: pieces of 1, 2, 3, ... tokens, another first one for each sequence. One without documents.
inline std::vector<int32_t> documents_of(const program::Layout& layout, int64_t sequence) {
  std::vector<int32_t> begins = {0};
  if (!layout.document_mask) return begins;
  for (auto length = static_cast<int32_t>(1 + sequence % 4); begins.back() + length < layout.seq_len; ++length)
    begins.push_back(begins.back() + length);
  return begins;
}

// All of a sequence that a token may need to know.
struct WholeSequence {
  std::vector<int32_t> first_seen;
  std::vector<std::vector<int32_t>> places;  // by rank of cp
};

inline WholeSequence whole_sequence(const program::Layout& layout, int64_t sequence) {
  const std::vector<int32_t> begins = documents_of(layout, sequence);
  WholeSequence whole;
  for (int32_t place = 0; place < layout.seq_len; ++place)
    whole.first_seen.push_back(*std::prev(std::upper_bound(begins.begin(), begins.end(), place)));
  const int ranks = layout.mesh.degree(mesh::Axis::kCp);
  if (ranks > 1) {
    whole.places = data::split_tokens(layout.seq_len, {.ranks = ranks, .split = layout.context_split, .whole_pieces = layout.whole_pieces()}, begins);
  } else {
    whole.places.emplace_back();
    for (int32_t place = 0; place < layout.seq_len; ++place) whole.places[0].push_back(place);
  }
  return whole;
}

// Those of a microbatch of whole sequences, but where the next token is of another document.
inline at::Tensor own_targets(const nn::Microbatch& whole, const program::Layout& layout) {
  at::Tensor targets = whole.targets.clone();
  for (int64_t row = 0; row < targets.size(0); ++row)
    for (const int32_t begin : documents_of(layout, whole.first_sample + row))
      if (begin > 0) targets.data_ptr<int64_t>()[row * layout.seq_len + begin - 1] = -100;
  return targets;
}

// What `rank` of cp has of a microbatch of whole sequences; as it is where the layout needs no places.
inline nn::Microbatch part_of(const nn::Microbatch& whole, const program::Layout& layout, int rank) {
  if (!layout.has_places()) return whole;
  const int64_t rows = whole.tokens.size(0), here = layout.tokens_here();
  const int ranks = layout.mesh.degree(mesh::Axis::kCp);
  const at::Tensor targets = own_targets(whole, layout);
  nn::Microbatch part = whole;
  part.tokens = at::empty({rows, here}, at::kLong);
  part.targets = at::empty({rows, here}, at::kLong);
  auto places = std::make_shared<nn::TokenPlaces>();
  places->length = layout.seq_len;
  places->rank = rank;
  places->positions = at::empty({rows, here}, at::kLong);
  places->index = at::empty({rows, here}, at::kInt);
  places->first_seen = at::empty({rows, here}, at::kInt);
  for (int of = 0; ranks > 1 && of < ranks; ++of) places->index_of_ranks.push_back(at::empty({rows, here}, at::kInt));
  if (ranks > 1) places->first_seen_of_places = at::empty({rows, layout.seq_len}, at::kInt);
  for (int64_t row = 0; row < rows; ++row) {
    const WholeSequence sequence = whole_sequence(layout, whole.first_sample + row);
    for (int of = 0; ranks > 1 && of < ranks; ++of)
      std::ranges::copy(sequence.places[static_cast<size_t>(of)], places->index_of_ranks[static_cast<size_t>(of)].data_ptr<int32_t>() + row * here);
    if (ranks > 1) std::ranges::copy(sequence.first_seen, places->first_seen_of_places.data_ptr<int32_t>() + row * layout.seq_len);
    for (int64_t column = 0; column < here; ++column) {
      const int64_t at = row * here + column;
      const int32_t place = sequence.places[static_cast<size_t>(rank)][static_cast<size_t>(column)];
      const bool there = place < layout.seq_len;
      const int32_t first = there ? sequence.first_seen[static_cast<size_t>(place)] : place;
      const int64_t from = row * layout.seq_len + place;
      part.tokens.data_ptr<int64_t>()[at] = there ? whole.tokens.data_ptr<int64_t>()[from] : 0;
      part.targets.data_ptr<int64_t>()[at] = there ? targets.data_ptr<int64_t>()[from] : -100;
      places->index.data_ptr<int32_t>()[at] = place;
      places->first_seen.data_ptr<int32_t>()[at] = first;
      places->positions.data_ptr<int64_t>()[at] = !there ? 0 : layout.reset_positions ? place - first : place;
    }
  }
  part.places = std::move(places);
  part.valid_targets = nn::count_valid(part.targets);
  if (whole.sequence_targets.defined()) part.sequence_targets = nn::count_valid_of_sequences(targets);
  return part;
}

// test_steps.h's samples, cut.
inline std::vector<nn::Microbatch> parts_of_microbatches(const program::Layout& layout, int rank, int64_t step) {
  std::vector<nn::Microbatch> all = microbatches(layout, rank, step);
  const int part = layout.mesh.coordinates(rank)[mesh::Axis::kCp];
  for (nn::Microbatch& microbatch : all) microbatch = part_of(microbatch, layout, part);
  return all;
}

inline Outcome train_context(const program::Layout& layout, TrainingOptions options = {}) {
  if (!options.load) options.load = parts_of_microbatches;
  return train_layout(layout, options);
}

inline program::Layout twin_of(const program::Layout& layout) { return program::reference_layout(layout); }

// How far a step is from another, as shares: the larger of loss, norm and the worst gradient. Gradients of key biases are rounding.
inline double error_of(const Outcome& actual, const Outcome& expected) {
  const StepResult &step = actual.steps.at(0), &reference = expected.steps.at(0);
  double worst = std::max(std::abs(step.loss / reference.loss - 1), std::abs(step.grad_norm / reference.grad_norm - 1));
  for (const auto& [name, gradient] : expected.gradients) {
    const double error = is_rounding(name) ? 0 : error_of(actual.gradients.at(name), gradient);
    worst = std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
  }
  return worst;
}

}  // namespace lockstep::engine::testing
