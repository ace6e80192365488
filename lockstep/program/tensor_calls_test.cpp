// The calls of layers over tp, folded from their descriptions, against a list written out by hand.
#include "lockstep/program/planned_calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"

namespace lockstep::program {
namespace {

using arch::Recompute;

using Row = std::tuple<std::string, Collective, int64_t, int64_t>;

// The calls written out by hand, half by half.
class Calls {
 public:
  Calls(const Layout& layout, const Action& action)
      : layout_(layout),
        tp_(layout.mesh.degree(mesh::Axis::kTp)),
        rows_(layout.micro_batch * layout.seq_len),
        forward_(action.kind == ActionKind::kForward),
        recompute_(action.kind == ActionKind::kRecompute &&
                   layout.recompute_of(action.layer) == arch::Recompute::kFull),
        input_(action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput),
        weight_(action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) {}

  std::vector<Row> of(const arch::LayerSpec& layer) {
    switch (layer.kind) {
      case arch::LayerKind::kEmbedding:
        if (forward_) reduce_output("embed forward");
        if (weight_ && sequence()) gather("embed backward");
        break;
      case arch::LayerKind::kBlock:
        half(layer.name + ".attention.qkv", layer.name + ".attention.out", /*output_again=*/true);
        half(cat(layer.name, ".mlp.", layout_.model.gated_mlp() ? "gate_up" : "up"), layer.name + ".mlp.down",
             /*output_again=*/false);
        break;
      case arch::LayerKind::kHead:
        if (input_) head();
        break;
    }
    return std::move(calls_);
  }

 private:
  bool sequence() const { return layout_.sequence_parallel; }
  int64_t padded_numel() const { return mesh::padded_part(rows_, tp_) * tp_ * layout_.model.hidden; }

  void add(std::string site, Collective collective, int64_t numel, int64_t element_size) {
    calls_.emplace_back(std::move(site), collective, numel, element_size);
  }
  void gather(std::string site) {
    add(std::move(site), Collective::kAllGather, padded_numel(), layout_.element_size());
  }
  void reduce_output(std::string site) {
    if (sequence())
      add(std::move(site), Collective::kReduceScatter, padded_numel(), layout_.element_size());
    else
      add(std::move(site), Collective::kAllReduce, rows_ * layout_.model.hidden, layout_.element_size());
  }

  // A column-parallel linear and the row-parallel one behind it, whose output full recomputation needs or not.
  void half(const std::string& column, const std::string& row, bool output_again) {
    if ((forward_ || recompute_) && sequence()) gather(column + " forward");
    if (forward_ || (recompute_ && output_again)) reduce_output(row + " forward");
    if (input_ && sequence()) gather(row + " backward");
    if (weight_ && sequence()) gather(column + " gather");
    if (input_) reduce_output(column + " backward");
  }

  // All in I.
  void head() {
    if (sequence()) gather("head forward");
    const int64_t chunk = arch::head_chunk_rows(mesh::padded_part(layout_.model.vocab_size, tp_));
    for (int64_t begin = 0; begin < rows_; begin += chunk)
      add("head softmax", Collective::kAllGather, tp_ * 3 * std::min(chunk, rows_ - begin), sizeof(float));
    reduce_output("head backward");
  }

  const Layout& layout_;
  const int tp_;
  const int64_t rows_;
  const bool forward_, recompute_, input_, weight_;
  std::vector<Row> calls_;
};

std::vector<Row> rows(const std::vector<PlannedCall>& calls) {
  std::vector<Row> rows;
  for (const PlannedCall& call : calls) rows.emplace_back(call_text(call.id), call.collective, call.numel, call.element_size);
  return rows;
}

// Three blocks, each of which recomputes another way.
Layout layout_of(const std::string& preset, int tp, bool sequence_parallel, int64_t seq_len, config::Precision precision) {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kTp] = tp;
  Layout layout{.model = arch::resolve_model({.preset = preset}), .mesh = mesh::Mesh(degrees)};
  layout.model.layers = 3;
  layout.model.vocab_size = 20011;  // in several chunks of rows
  layout.global_batch = layout.micro_batch = 3;
  layout.seq_len = seq_len;
  layout.precision = precision;
  layout.recompute = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  layout.sequence_parallel = sequence_parallel;
  return layout;
}

TEST(TensorCalls, AreThoseWrittenOutByHand) {
  int made = 0;
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const int tp : {2, 4})
      for (const bool sequence_parallel : {true, false})
        for (const int64_t seq_len : {1, 65, 512})
          for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16}) {
            const Layout layout = layout_of(preset, tp, sequence_parallel, seq_len, precision);
            for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput,
                                          ActionKind::kBackwardWeight, ActionKind::kRecompute, ActionKind::kFetch})
              for (int layer = 0; layer < layout.num_layers(); ++layer) {
                const Action action{.kind = kind, .layer = layer, .microbatch = 0};
                SCOPED_TRACE(cat(preset, " tp ", tp, sequence_parallel ? " sequence" : "", " S", seq_len, " ",
                                 action_name(kind), " layer ", layer));
                const std::vector<PlannedCall> calls = tensor_calls(layout, action);
                const arch::LayerSpec spec = arch::layer_spec(layout.model, layer);
                EXPECT_EQ(rows(calls), Calls(layout, action).of(spec));
                if (const auto phase = phase_of(layout, action)) {
                  EXPECT_EQ(rows(tensor_calls(layout, spec, description_of_calls(layout, spec), *phase)), rows(calls));
                }
                made += static_cast<int>(calls.size());
              }
          }
  EXPECT_GT(made, 1000);
}

// Those of the loss, without the gradient's; blocks as in training.
TEST(TensorCalls, OfAnEvaluation) {
  const Layout layout = layout_of("llama-test", 2, true, 16, config::Precision::kFp32);
  const auto evaluated = [&](int layer) { return rows(tensor_calls(layout, layer, arch::Phase::kEvaluate)); };
  EXPECT_EQ(evaluated(4), (std::vector<Row>{{"head forward", Collective::kAllGather, 48 * 48, 4},
                                            {"head softmax", Collective::kAllGather, 2 * 3 * 48, 4}}));
  for (const int layer : {0, 1, 3})
    EXPECT_EQ(evaluated(layer), rows(tensor_calls(layout, {.kind = ActionKind::kForward, .layer = layer, .microbatch = 0})));
}

TEST(TensorCalls, OneRankMakesNone) {
  const Layout layout = layout_of("gpt2-test", 1, true, 16, config::Precision::kFp32);
  for (int layer = 0; layer < layout.num_layers(); ++layer)
    EXPECT_TRUE(tensor_calls(layout, {.kind = ActionKind::kBackward, .layer = layer, .microbatch = 0}).empty());
}

}  // namespace
}  // namespace lockstep::program
