// Kinds of branches, a registry. Most have two linears, a column-parallel one in front and a row-parallel one at the end: an entry says
// them, and describes what is its own between them. Others say all of their parameters and steps. A program adds its own kinds; the
// layer that runs is made under the same id (model/parts.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/layer_builder.h"

namespace lockstep::arch {

inline constexpr std::string_view kExperts = "experts";  // kind and name of the branch that stands for an MLP
inline constexpr std::string_view kLatentAttention = "latent_attention";  // kind of the branch that stands for attention, and keeps its name

struct BranchKind;

// The rows of a layer's parameters, as they are added: whole, whatever the layout.
class ParameterRows {
 public:
  ParameterRows(const ModelConfig& m, const LayerSpec& l, mesh::Range those) : model(m), layer(l), experts(those) {}  // both outlive this
  const ModelConfig& model;
  const LayerSpec& layer;
  const mesh::Range experts;  // those that get rows
  std::vector<ParamSpec> rows{};

  static constexpr double kInitStd = 0.02;
  // `part`: "attention.q"; empty: the layer itself.
  ParamSpec& weight(std::string_view part, int64_t outputs, int64_t inputs, TensorCut cut, double init_std = kInitStd);
  ParamSpec& bias(std::string_view part, int64_t size, TensorCut cut = TensorCut::kNone);
  ParamSpec& scale(std::string_view part, int64_t size);
  void norm(const std::string& part);
  void branch(const Branch& branch);  // with its norms
  std::string named(std::string_view part, std::string_view kind) const;
  double output_std() const;  // of what is added to x

 private:
  void linear_rows(const Branch& branch, const BranchKind& kind);
  ParamSpec& add(std::string_view part, std::string_view kind, std::vector<int64_t> shape, TensorCut cut);
};

struct BranchLinears {
  struct Piece {
    std::string_view name{};
    int64_t outputs = 0;
    TensorCut cut = TensorCut::kRows;
  };
  LayerBuilder::Linear first{};
  std::vector<Piece> pieces{};  // of its outputs, each a parameter of its own: several are stacked along dim 0
  LayerBuilder::Linear last{};
};

// Of one branch of a block that is being described: what lies between its linears.
class BranchDescription {
 public:
  virtual ~BranchDescription() = default;
  virtual void forward(LayerBuilder& b) const = 0;     // from `projected` to `inner`
  virtual void backward_input(LayerBuilder&) const {}  // from the gradient of `inner` to that of `projected`, in its place
  virtual void backward_weight(LayerBuilder&) const {}
  // Its calls, where it makes any: those of the forward pass and those of its backward.
  virtual void make_forward_calls(LayerBuilder&, const Branch&) {}
  virtual void make_backward_calls(LayerBuilder&, const Branch&) {}

  int projected = kNoValue;  // by the first linear
  int inner = kNoValue;      // what the last linear takes
  bool views_projected = false;  // `projected` is in use until the last linear has run
};

// What a block and one of its branches hand each other. A value that is none is not there, or not the branch's to release.
struct BranchEnds {
  int x = kNoValue;   // it reads; released in W, where no other part needs it
  int y = kNoValue;   // it makes
  int dy = kNoValue;  // of y; released in I or W
  int dx = kNoValue;  // it makes
  int dsum = kNoValue;  // the gradient that dy is, as it came: released with dy in W, in these phases
  PhaseSet lose_dsum{};
};

// All steps of one branch between its norms. The values of its own and its calls are there when it is made, those values that are kept
// in the order of `show memory`.
class WholeBranch {
 public:
  virtual ~WholeBranch() = default;
  // W wants dy as it came, without sequence parallelism.
  virtual bool keeps_dy() const = 0;
  // `outputs`: where y is wanted; elsewhere only what is kept.
  virtual void forward(LayerBuilder& b, const BranchEnds& ends, PhaseSet outputs) const = 0;
  // Until dx is there or on its way ...
  virtual void backward_input(LayerBuilder& b, const BranchEnds& ends) const = 0;
  virtual void backward_weight(LayerBuilder& b, const BranchEnds& ends) const = 0;
  // ... and has come: behind W where that runs beside it.
  virtual void finish_input(LayerBuilder& b, const BranchEnds& ends, PhaseSet phases) const = 0;
};

// Of two linears (linear_branch.cpp); each pass in halves too, with one of them each.
class LinearPair : public WholeBranch {
 public:
  void forward(LayerBuilder& b, const BranchEnds& ends, PhaseSet outputs) const override {
    forward_first(b);
    forward_last(b, ends, outputs);
  }
  void backward_input(LayerBuilder& b, const BranchEnds& ends) const override {
    backward_last(b);
    backward_first(b, ends);
  }
  virtual void forward_first(LayerBuilder& b) const = 0;  // to what the last linear takes
  virtual void forward_last(LayerBuilder& b, const BranchEnds& ends, PhaseSet outputs) const = 0;
  virtual void backward_last(LayerBuilder& b) const = 0;  // to the gradient of what the first linear makes, in its place
  virtual void backward_first(LayerBuilder& b, const BranchEnds& ends) const = 0;
};
std::unique_ptr<LinearPair> new_linear_branch(LayerBuilder& b, const Branch& branch, const BranchLinears& linears,
                                              std::unique_ptr<BranchDescription> inside);

// A stretch of the drawing of a branch.
struct DrawnPart {
  enum class What {
    kText,      // a line
    kMatrices,  // side by side
    kCalls,     // of that part, a line each
  };
  What what = What::kText;
  std::vector<std::string> names{};  // parameters with their branch, a part, or the line
};

using ParameterPieces = std::map<std::string, ParamSpec>;  // of one layer, by their names without its own

struct BranchKind {
  std::string_view id{};   // texts live as long as the program
  std::string_view sum{};  // the line of `show memory` that counts x + branch
  BranchLinears (*linears)(const ModelConfig&) = nullptr;
  void (*parameters)(ParameterRows&, const Branch&) = nullptr;  // beside the linears'; null: none
  // Makes the values, those that are kept in the order of `show memory`. The linears are those of this rank's part.
  std::unique_ptr<BranchDescription> (*describe)(LayerBuilder&, const BranchLinears&) = nullptr;
  // In the drawing of a block, between the linears.
  std::string (*between)(const ModelConfig&, const Branch&, const ParameterPieces&) = nullptr;

  // Of a kind that is not two linears, in place of these four: all parameters, all steps, and all of its drawing.
  void (*rows)(ParameterRows&, const Branch&) = nullptr;
  std::unique_ptr<WholeBranch> (*describe_whole)(LayerBuilder&, const Branch&) = nullptr;
  std::vector<DrawnPart> (*drawing)(const ModelConfig&, const Branch&, const ParameterPieces&) = nullptr;

  // What the layouts of a model that has it may not do (program::layout_problems).
  bool whole_only = false;       // cut it over tp
  bool whole_sequences = false;  // hold sequences in parts (cp), or several documents in one
};
const BranchKind& experts_kind();           // expert_kind.cpp
const BranchKind& latent_attention_kind();  // latent_kind.cpp
const BranchKind& state_space_kind();       // state_space_kind.cpp

// InternalError where the id is there already, or is not there. Kinds are added before the first model that has them is made.
void add_branch_kind(const BranchKind& kind);
const BranchKind& branch_kind(std::string_view id);

// What in the model's blocks contradicts itself, in words.
std::vector<std::string> block_problems(const ModelConfig& model);

}  // namespace lockstep::arch
