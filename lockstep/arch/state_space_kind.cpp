// A state space as a kind of branch: parameters and drawing.
#include <cmath>
#include <utility>

#include "lockstep/arch/state_space_branch.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

struct Piece {
  const char* name;
  int64_t outputs;
  TensorCut cut;
};

// Of what `in` makes, in its order.
std::vector<Piece> projected_pieces(const StateSpaceSizes& s) {
  const int64_t of_groups = s.groups * s.state;
  return {{"z", s.inner(), TensorCut::kRows},
          {"x", s.inner(), TensorCut::kRows},
          {"b", of_groups, TensorCut::kGroups},
          {"c", of_groups, TensorCut::kGroups},
          {"dt", s.heads, TensorCut::kRows}};
}

std::vector<Piece> convolved_pieces(const StateSpaceSizes& s) {
  const int64_t of_groups = s.groups * s.state;
  return {{"conv_x", s.inner(), TensorCut::kRows}, {"conv_b", of_groups, TensorCut::kGroups}, {"conv_c", of_groups, TensorCut::kGroups}};
}

void projection_rows(ParameterRows& rows, const Branch& branch) {
  const StateSpaceSizes& s = rows.model.state_space;
  const std::string in = branch.part("in");
  for (const Piece& p : projected_pieces(s))
    rows.weight(branch.part(p.name), p.outputs, rows.model.hidden, p.cut).fuse = rows.named(in, "weight");
  if (!s.projection_bias) return;
  for (const Piece& p : projected_pieces(s)) rows.bias(branch.part(p.name), p.outputs, p.cut).fuse = rows.named(in, "bias");
}

// As a convolution over W tokens begins in PyTorch. No matrix: an optimizer of matrices leaves it alone.
void convolution_rows(ParameterRows& rows, const Branch& branch) {
  const StateSpaceSizes& s = rows.model.state_space;
  const std::string conv = branch.part("conv");
  const double bound = 1 / std::sqrt(static_cast<double>(s.convolution));
  const auto begin = [&](ParamSpec& spec, const char* kind) {
    spec.init = Init::kUniform;
    spec.init_std = bound;
    spec.of = config::ParameterClass::kNorm;
    spec.fuse = rows.named(conv, kind);
  };
  for (const Piece& p : convolved_pieces(s)) begin(rows.weight(branch.part(p.name), p.outputs, s.convolution, p.cut), "weight");
  if (!s.convolution_bias) return;
  for (const Piece& p : convolved_pieces(s)) begin(rows.bias(branch.part(p.name), p.outputs, p.cut), "bias");
}

// A number of each head, whole on every rank of tp, which uses those of its own heads.
void head_rows(ParameterRows& rows, const Branch& branch) {
  for (const auto& [part, init] : {std::pair{"dt_bias", Init::kTimeStep}, std::pair{"a_log", Init::kLogDecay}, std::pair{"d", Init::kOnes}}) {
    ParamSpec& spec = rows.scale(branch.part(part), rows.model.state_space.heads);
    spec.init = init;
    spec.fp32 = true;
    spec.per_head = true;
  }
}

void state_space_parameters(ParameterRows& rows, const Branch& branch) {
  const StateSpaceSizes& s = rows.model.state_space;
  projection_rows(rows, branch);
  convolution_rows(rows, branch);
  head_rows(rows, branch);
  if (s.norm_groups > 0) rows.scale(branch.part("norm"), s.inner()).cut = TensorCut::kRows;
  rows.weight(branch.part("out"), rows.model.hidden, s.inner(), TensorCut::kColumns, rows.output_std());
  if (s.projection_bias) rows.bias(branch.part("out"), rows.model.hidden);
}

std::vector<DrawnPart> state_space_drawing(const ModelConfig& m, const Branch& branch, const ParameterPieces& pieces) {
  using What = DrawnPart::What;
  const StateSpaceSizes& s = m.state_space;
  const auto weight = [&](std::string_view part) { return branch.part(part) + ".weight"; };
  const ParamSpec& dt = pieces.at(weight("dt"));
  const int64_t first = dt.local_offset[0], last = first + dt.local_shape[0] - 1, of_group = s.heads / s.groups;
  const bool normed = s.norm_groups > 0;
  std::vector<DrawnPart> parts = {
      {What::kCalls, {branch.part("in")}},
      {What::kMatrices, {weight("z"), weight("x"), weight("b"), weight("c"), weight("dt")}},
      {What::kCalls, {branch.part("columns")}},
      {What::kText, {cat("silu(convolution) of x, b, c over ", s.convolution, " tokens; steps of dt")}},
      {What::kText, {cat("scan of heads ", first, "..", last, " with b, c of groups ", first / of_group, "..", last / of_group, ", chunks of ", s.chunk,
                         " tokens, states ", s.head_size, " x ", s.state)}},
      {What::kCalls, {branch.part("states")}},
      {What::kText, {normed ? cat("norm(y silu(z)) over ", s.norm_groups, s.norm_groups == 1 ? " group" : " groups") : "y silu(z)"}}};
  if (normed) parts.push_back({What::kCalls, {branch.part("norm")}});
  parts.push_back({What::kMatrices, {weight("out")}});
  parts.push_back({What::kCalls, {branch.part("out")}});
  return parts;
}

}  // namespace

const BranchKind& state_space_kind() {
  static const BranchKind kind{.id = kStateSpace,
                               .sum = "sum after state space",
                               .rows = state_space_parameters,
                               .describe_whole = new_state_space_branch,
                               .drawing = state_space_drawing};
  return kind;
}

}  // namespace lockstep::arch
