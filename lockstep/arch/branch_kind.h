// Kinds of branches, a registry: an entry says the two linears of a branch, a column-parallel one in front and a row-parallel one at
// the end, and describes what is its own between them. A program adds its own kinds; the layer that runs is made under the same
// id (model/parts.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/arch/layer_builder.h"

namespace lockstep::arch {

// The rows of a layer's parameters, as they are added: whole, whatever the layout.
class ParameterRows {
 public:
  ParameterRows(const ModelConfig& m, const LayerSpec& l) : model(m), layer(l) {}  // both outlive this
  const ModelConfig& model;
  const LayerSpec& layer;
  std::vector<ParamSpec> rows{};

  static constexpr double kInitStd = 0.02;
  // `part`: "attention.q"; empty: the layer itself.
  ParamSpec& weight(std::string_view part, int64_t outputs, int64_t inputs, TensorCut cut, double init_std = kInitStd);
  ParamSpec& bias(std::string_view part, int64_t size, TensorCut cut = TensorCut::kNone);
  ParamSpec& scale(std::string_view part, int64_t size);
  void norm(const std::string& part);
  void branch(const Branch& branch);  // with its norms

 private:
  std::string named(std::string_view part, std::string_view kind) const;
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

  int projected = kNoValue;  // by the first linear
  int inner = kNoValue;      // what the last linear takes
  bool views_projected = false;  // `projected` is in use until the last linear has run
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
};

// InternalError where the id is there already, or is not there. Kinds are added before the first model that has them is made.
void add_branch_kind(const BranchKind& kind);
const BranchKind& branch_kind(std::string_view id);

// What in the model's blocks contradicts itself, in words.
std::vector<std::string> block_problems(const ModelConfig& model);

}  // namespace lockstep::arch
