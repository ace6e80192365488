#include "lockstep/program/tensor_calls.h"

#include <algorithm>

#include "lockstep/base/check.h"

namespace lockstep::program {
namespace {

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

  std::vector<TensorCall> of(const arch::LayerSpec& layer) {
    switch (layer.kind) {
      case arch::LayerKind::kEmbedding:
        if (forward_) reduce_output("embed forward");
        if (weight_ && sequence()) gather("embed backward");
        break;
      case arch::LayerKind::kBlock:
        half(layer.name + ".attention.qkv", layer.name + ".attention.out", /*output_again=*/true);
        half(cat(layer.name, ".mlp.", layout_.model.traits().gated_mlp ? "gate_up" : "up"), layer.name + ".mlp.down",
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
    calls_.push_back({std::move(site), collective, numel, element_size});
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

  // All in I; in an evaluation's F, which nobody predicts, without the last one.
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
  std::vector<TensorCall> calls_;
};

}  // namespace

std::vector<TensorCall> tensor_calls(const Layout& layout, const Action& action) {
  if (layout.mesh.degree(mesh::Axis::kTp) == 1 || action.layer < 0) return {};
  return Calls(layout, action).of(arch::layer_spec(layout.model, action.layer));
}

Algorithm tensor_algorithm(Collective collective, int64_t bytes, int ranks) {
  // With several peers a direct call of many bytes waits for all of them at every piece; a ring only for one.
  constexpr int64_t kLarge = 256 << 10;
  if (ranks > 2 && bytes > kLarge) return Algorithm::kRing;
  return collective == Collective::kAllReduce ? prompt_all_reduce(bytes, ranks) : Algorithm::kDirect;
}

}  // namespace lockstep::program
