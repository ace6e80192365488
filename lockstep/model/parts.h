// The layers of all families, each built from the model's sizes, flags and parameters. What differs between families is
// decided here and in branches.cpp, and nowhere in a forward.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/model/block.h"
#include "lockstep/model/model.h"
#include "lockstep/nn/context_attention.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/expert_exchange.h"
#include "lockstep/nn/head.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/piece_exchange.h"
#include "lockstep/nn/rotary.h"
#include "lockstep/nn/row_sums.h"
#include "lockstep/nn/shared_rows.h"
#include "lockstep/program/call.h"

namespace lockstep::model {

// Which branch of which block.
struct BranchPlace {
  const arch::Branch& spec;
  std::string name;       // "blocks.3.attention"
  program::CallId calls;  // of the block
};

// Builds single layers; looks every parameter up in `source` as it goes. Blocks share one table of rotary angles for each rotation.
class PartsBuilder {
 public:
  // The references outlive the builder, not the layers.
  PartsBuilder(const arch::ModelConfig& model, nn::ParameterSource& source, const ModelOptions& options);

  std::unique_ptr<nn::Embedding> embedding();
  std::unique_ptr<Block> block(int index);
  std::unique_ptr<nn::Head> head();

  // What branches are made of. The two linears of a branch are cut by outputs and by inputs.
  const arch::ModelConfig& model() const { return model_; }
  int tensor_size() const;  // ranks that share the heads and the width of a branch
  int tensor_rank() const;  // this one of them
  nn::Parameter parameter(const BranchPlace& place, std::string_view part);  // "q_norm.weight"
  std::unique_ptr<nn::Linear> first_linear(const BranchPlace& place);
  std::unique_ptr<nn::Linear> last_linear(const BranchPlace& place);
  // A linear of the branch, cut over tp by outputs or by inputs: "shared.gate_up".
  std::unique_ptr<nn::Linear> column_linear(const BranchPlace& place, std::string_view name, bool has_bias = false);
  std::unique_ptr<nn::Linear> row_linear(const BranchPlace& place, std::string_view name, bool has_bias = false);
  // Rows of a microbatch that the ranks of tp share: "k_rope".
  std::unique_ptr<nn::SharedRows> shared_rows(const BranchPlace& place, std::string_view name);
  // Who brings rows of that branch to its experts.
  std::shared_ptr<nn::ExpertExchange> expert_exchange(const BranchPlace& place);
  // Who brings the tokens of its sequences together; null where this rank has them all.
  std::unique_ptr<nn::ContextAttention> context_attention(const BranchPlace& place);
  // Who passes the ends of pieces on where the ranks of cp hold sequences in pieces, and who sums numbers of a row over tp; null where there is
  // one rank. state_space_parts.cpp
  std::unique_ptr<nn::PieceExchange> piece_exchange(const BranchPlace& place);
  std::unique_ptr<nn::RowSums> row_sums(const BranchPlace& place, std::string_view name);  // "norm", "qk_norm"
  const config::MoeSection& moe() const { return options_.moe; }
  // As the branch says; nothing with learned positions, or where it does not turn.
  std::optional<nn::Rotary> rotary(const BranchPlace& place);

 private:
  template <typename Sharded>
  std::unique_ptr<nn::Linear> linear(const BranchPlace& place, const arch::LayerBuilder::Linear& linear);
  // The groups where they have several ranks.
  parallel::TensorGroup* group() const;
  parallel::ContextGroup* context() const;
  std::unique_ptr<nn::Norm> norm(const std::string& name);
  nn::Dropout dropout(const std::string& site) const;

  const arch::ModelConfig& model_;
  nn::ParameterSource& source_;
  const ModelOptions& options_;
  std::map<arch::Rotation, nn::Rotary> rotary_;  // each built with the first branch that has it
};

// Kinds of branches as layers that run: a registry beside that of arch/branch_kind.h, under the same ids, which live as long as the
// program. InternalError where an id is there already, or is not there. Kinds are added before the first model is built.
using BranchMaker = std::unique_ptr<nn::Branch> (*)(PartsBuilder& parts, const BranchPlace& place);
void add_branch_maker(std::string_view kind, BranchMaker maker);
BranchMaker branch_maker(std::string_view kind);
std::unique_ptr<nn::Branch> make_state_space(PartsBuilder& parts, const BranchPlace& place);  // state_space_parts.cpp

}  // namespace lockstep::model
