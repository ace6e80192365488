#include "lockstep/arch/forward_kind.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

struct Added {
  ForwardKind kind{};
  std::string sum{}, graph{};  // lines of `show memory`
};

std::deque<Added>& added() {
  static std::deque<Added> all;
  return all;
}

const Added& find(std::string_view id) {
  const auto found = std::ranges::find(added(), id, [](const Added& one) { return std::string_view(one.kind.id); });
  LOCKSTEP_CHECK(found != added().end(), "no forward function of a kind named ", id);
  return *found;
}

std::vector<ForwardParameter> parameters_of(const ForwardKind& kind, const ModelConfig& model) {
  return kind.parameters ? kind.parameters(model) : std::vector<ForwardParameter>();
}

double sum_of_matrices(const ForwardKind& kind, const ModelConfig& model, double (*of)(double out, double in)) {
  double sum = 0;
  for (const ForwardParameter& parameter : parameters_of(kind, model))
    if (parameter.shape.size() == 2) sum += of(static_cast<double>(parameter.shape[0]), static_cast<double>(parameter.shape[1]));
  return sum;
}

double flops_of(const ForwardKind& kind, const ModelConfig& model) {
  if (kind.flops_per_token) return kind.flops_per_token(model);
  return sum_of_matrices(kind, model, [](double out, double in) { return 2 * out * in; });
}

double kept_of(const ForwardKind& kind, const ModelConfig& model) {
  if (kind.kept_per_token) return kind.kept_per_token(model);
  return sum_of_matrices(kind, model, [](double out, double in) { return in + 2 * out; });
}

void add_rows(ParameterRows& rows, const Branch& branch) {
  for (const ForwardParameter& parameter : parameters_of(forward_kind(branch.kind), rows.model)) {
    const size_t dims = parameter.shape.size();
    LOCKSTEP_CHECK(dims == 1 || dims == 2, branch.kind, ".", parameter.name, ": one dim or two, not ", dims);
    const std::string part = branch.part(parameter.name);
    ParamSpec& row = dims == 2 ? rows.weight(part, parameter.shape[0], parameter.shape[1], TensorCut::kNone)
                               : rows.scale(part, parameter.shape[0]);
    row.init = parameter.init;
    row.init_std = parameter.init_std;
  }
}

// The graph is all that a forward pass keeps; I uses it up and makes all gradients, W adds those of parameters.
class ForwardBranch : public WholeBranch {
 public:
  ForwardBranch(LayerBuilder& b, const Branch& branch) {
    const Added& own = find(branch.kind);
    const Sizes& s = b.s;
    const double tokens = static_cast<double>(s.tokens);
    graph_ = b.value(std::llround(tokens * kept_of(own.kind, s.model)) * s.input.element_size, {own.graph, Recompute::kNone});
    int64_t elements_of_all = 0;
    for (const ForwardParameter& parameter : parameters_of(own.kind, s.model)) elements_of_all += elements(parameter.shape);
    gradients_ = b.value(elements_of_all * s.input.element_size);
    work_ = {.name = own.kind.id, .m = s.tokens, .n = std::llround(flops_of(own.kind, s.model) / 2), .k = 1};
  }

  bool keeps_dy() const override { return false; }

  void forward(LayerBuilder& b, const BranchEnds& ends, PhaseSet outputs) const override {
    b.take(kAgain, graph_);
    b.product(kAgain, work_);
    b.take(outputs, ends.y);
    b.drop(kLose, graph_);
  }

  // Autograd makes gradients of what lies between as it lets the graph go: as much again at most.
  void backward_input(LayerBuilder& b, const BranchEnds& ends) const override {
    b.take(kInputs, gradients_), b.take(kInputs, ends.dx);
    for (const Product::Role role : {Product::Role::kInputGradient, Product::Role::kWeightGradient}) {
      Product product = work_;
      product.role = role;
      b.product(kInputs, product, role == Product::Role::kInputGradient ? b.bytes(graph_) : 0);
    }
    b.drop(kInputs, graph_), b.drop(kInputs, ends.dy);
  }

  void backward_weight(LayerBuilder& b, const BranchEnds& ends) const override {
    b.kernel(kWeights, 0, 2 * b.bytes(gradients_));
    b.drop(kWeights, gradients_), b.drop(kWeights, ends.x);
    b.drop(ends.lose_dsum, ends.dsum);
  }

  void finish_input(LayerBuilder&, const BranchEnds&, PhaseSet) const override {}  // nothing is on its way

 private:
  int graph_ = kNoValue, gradients_ = kNoValue;
  Product work_{};
};

std::unique_ptr<WholeBranch> describe(LayerBuilder& b, const Branch& branch) { return std::make_unique<ForwardBranch>(b, branch); }

std::vector<DrawnPart> draw(const ModelConfig& model, const Branch& branch, const ParameterPieces&) {
  std::vector<DrawnPart> parts = {{DrawnPart::What::kText, {cat("the function ", branch.kind, ", differentiated by autograd")}}};
  std::vector<std::string> names;
  for (const ForwardParameter& parameter : parameters_of(forward_kind(branch.kind), model))
    names.push_back(branch.part(parameter.name) + ".weight");
  if (!names.empty()) parts.push_back({DrawnPart::What::kMatrices, names});
  return parts;
}

}  // namespace

void add_forward_kind(const ForwardKind& kind) {
  Added& own = added().emplace_back(Added{.kind = kind, .sum = cat("sum after ", kind.id), .graph = cat(kind.id, " graph")});
  try {
    add_branch_kind({.id = own.kind.id,
                     .sum = own.sum,
                     .rows = add_rows,
                     .describe_whole = describe,
                     .drawing = draw,
                     .whole_only = true,
                     .whole_sequences = !kind.by_token});
  } catch (...) {
    added().pop_back();
    throw;
  }
}

const ForwardKind& forward_kind(std::string_view id) { return find(id).kind; }

}  // namespace lockstep::arch
