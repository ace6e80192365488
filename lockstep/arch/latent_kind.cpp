// Latent attention as a kind of branch: parameters and drawing.
#include <utility>

#include "lockstep/arch/latent_branch.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

// What makes latents is whole on every rank of tp, what makes heads of them is cut by heads.
void latent_parameters(ParameterRows& rows, const Branch& branch) {
  const ModelConfig& m = rows.model;
  const LatentSizes& s = m.latent;
  const std::string fused = rows.named(branch.part("qkv_a"), "weight");
  rows.weight(branch.part("q_a"), s.q_rank, m.hidden, TensorCut::kNone).fuse = fused;
  rows.weight(branch.part("kv_a"), s.kv_rank + s.rope, m.hidden, TensorCut::kNone).fuse = fused;
  rows.scale(branch.part("q_a_norm"), s.q_rank);
  rows.scale(branch.part("kv_a_norm"), s.kv_rank);
  rows.weight(branch.part("q_b"), m.heads * s.head(), s.q_rank, TensorCut::kRows);
  rows.weight(branch.part("kv_b"), m.heads * (s.nope + s.value), s.kv_rank, TensorCut::kRows);
  rows.weight(branch.part("out"), m.hidden, m.heads * s.value, TensorCut::kColumns, rows.output_std());
}

std::vector<DrawnPart> latent_drawing(const ModelConfig& m, const Branch& branch, const ParameterPieces& pieces) {
  using What = DrawnPart::What;
  const auto weight = [&](std::string_view part) { return branch.part(part) + ".weight"; };
  const ParamSpec& queries = pieces.at(weight("q_b"));
  const int64_t first = queries.local_offset[0] / m.latent.head(), heads = queries.local_shape[0] / m.latent.head();
  return {{What::kMatrices, {weight("q_a"), weight("kv_a")}},
          {What::kText, {cat("norms of both latents; ", m.latent.rope, " numbers of a key for all heads go past them")}},
          {What::kCalls, {branch.part("k_rope")}},
          {What::kCalls, {branch.part("q_b")}},
          {What::kCalls, {branch.part("kv_b")}},
          {What::kMatrices, {weight("q_b"), weight("kv_b")}},
          {What::kText, {cat("attention of heads ", first, "..", first + heads - 1)}},
          {What::kMatrices, {weight("out")}},
          {What::kCalls, {branch.part("out")}}};
}

}  // namespace

const BranchKind& latent_attention_kind() {
  static const BranchKind kind{.id = kLatentAttention,
                               .sum = "sum after attention",
                               .rows = latent_parameters,
                               .describe_whole = new_latent_branch,
                               .drawing = latent_drawing};
  return kind;
}

}  // namespace lockstep::arch
