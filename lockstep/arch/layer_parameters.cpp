// Which parameters a layer has, and which branches a block.
#include <cmath>
#include <initializer_list>
#include <utility>

#include "lockstep/arch/layer_description.h"

namespace lockstep::arch {
namespace {

constexpr double kInitStd = 0.02;

class Rows {
 public:
  explicit Rows(const ModelConfig& model) : model_(model) {}
  std::vector<ParameterRow> take() { return std::move(rows_); }

  ParameterRow& weight(std::string_view part, int64_t rows, int64_t columns, TensorCut cut, double std = kInitStd) {
    return rows_.emplace_back(ParameterRow{.part = part, .rows = rows, .columns = columns, .init_std = std, .cut = cut});
  }
  void bias(std::string_view part, int64_t size, TensorCut cut = TensorCut::kNone) {
    rows_.push_back({.part = part, .bias = true, .rows = size, .init = Init::kZeros, .cut = cut});
  }
  ParameterRow& scale(std::string_view part, int64_t size) {
    return rows_.emplace_back(ParameterRow{.part = part, .rows = size, .init = Init::kOnes});
  }
  void norm(std::string_view part) {
    scale(part, model_.hidden);
    if (model_.traits().layer_norm) bias(part, model_.hidden);
  }

  // Linears that read the same input: their weights stacked along dim 0, and their biases where there are any.
  struct Fused {
    std::string_view part;
    int64_t rows;
    TensorCut cut;
  };
  void fused(std::string_view name, bool has_bias, std::initializer_list<Fused> parts) {
    for (const Fused& p : parts) weight(p.part, p.rows, model_.hidden, p.cut).fused = name;
    if (!has_bias) return;
    for (const Fused& p : parts) {
      bias(p.part, p.rows, p.cut);
      rows_.back().fused = name;
    }
  }
  // The linear at the end of a branch.
  void output(std::string_view part, int64_t columns, bool has_bias) {
    weight(part, model_.hidden, columns, TensorCut::kColumns, kInitStd / std::sqrt(2.0 * static_cast<double>(model_.layers)));
    if (has_bias) bias(part, model_.hidden);
  }

  void attention(const Branch& branch) {
    const int64_t q = model_.heads * model_.head_size, kv = model_.kv_heads * model_.head_size;
    fused(branch.first, model_.qkv_bias,
          {{"attention.q", q, TensorCut::kRows},
           {"attention.k", kv, TensorCut::kKeyValueHeads},
           {"attention.v", kv, TensorCut::kKeyValueHeads}});
    if (model_.qk_norm)
      for (const char* part : {"attention.q_norm", "attention.k_norm"}) scale(part, model_.head_size).per_head = true;
    output(branch.last, q, model_.out_bias);
  }

  void mlp(const Branch& branch) {
    if (model_.traits().gated_mlp) {
      fused(branch.first, model_.mlp_bias,
            {{"mlp.gate", model_.ffn, TensorCut::kRows}, {"mlp.up", model_.ffn, TensorCut::kRows}});
    } else {
      weight(branch.first, model_.ffn, model_.hidden, TensorCut::kRows);
      if (model_.mlp_bias) bias(branch.first, model_.ffn, TensorCut::kRows);
    }
    output(branch.last, model_.ffn, model_.mlp_bias);
  }

 private:
  const ModelConfig& model_;
  std::vector<ParameterRow> rows_;
};

}  // namespace

std::vector<Branch> block_branches(const ModelConfig& model, int) {
  const bool gated = model.traits().gated_mlp;
  return {{.mixer = Branch::Mixer::kAttention,
           .name = "attention",
           .norm = "attention_norm",
           .first = "attention.qkv",
           .last = "attention.out"},
          {.mixer = Branch::Mixer::kMlp,
           .name = "mlp",
           .norm = "mlp_norm",
           .first = gated ? "mlp.gate_up" : "mlp.up",
           .last = "mlp.down",
           .between = gated ? "silu(gate) * up" : "gelu"}};
}

std::vector<ParameterRow> layer_parameters(const ModelConfig& model, const LayerSpec& layer) {
  Rows rows(model);
  switch (layer.kind) {
    case LayerKind::kEmbedding:
      rows.weight("tokens", model.vocab_size, model.hidden, TensorCut::kRows).in_head = model.tied;
      if (model.traits().learned_positions) rows.weight("positions", model.max_seq_len, model.hidden, TensorCut::kNone);
      break;
    case LayerKind::kBlock:
      for (const Branch& branch : block_branches(model, layer.index)) {
        rows.norm(branch.norm);
        branch.mixer == Branch::Mixer::kAttention ? rows.attention(branch) : rows.mlp(branch);
      }
      break;
    case LayerKind::kHead:
      rows.norm("norm");
      if (!model.tied) rows.weight("", model.vocab_size, model.hidden, TensorCut::kRows);
      break;
  }
  return rows.take();
}

}  // namespace lockstep::arch
