// The layers of all families, each built from the model's sizes, flags and parameters. What differs between families is
// decided here and nowhere in a forward.
#pragma once

#include <memory>
#include <string>

#include "lockstep/arch/layer_description.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/model/block.h"
#include "lockstep/model/model.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/head.h"
#include "lockstep/nn/layer.h"
#include "lockstep/program/call.h"

namespace lockstep::model {

// Builds single layers; looks every parameter up in `source` as it goes. Blocks share one table of rotary angles.
class PartsBuilder {
 public:
  // The references outlive the builder, not the layers.
  PartsBuilder(const arch::ModelConfig& model, nn::ParameterSource& source, const ModelOptions& options);

  std::unique_ptr<nn::Embedding> embedding();
  std::unique_ptr<Block> block(int index);
  std::unique_ptr<nn::Head> head();

 private:
  // In the order of the data: cut by outputs, then by inputs.
  std::unique_ptr<nn::Linear> column_linear(const std::string& name, const program::CallId& calls, bool has_bias);
  std::unique_ptr<nn::Linear> row_linear(const std::string& name, const program::CallId& calls, bool has_bias);
  struct Parameters {
    nn::Parameter weight, bias;
  };
  Parameters parameters(const std::string& name, bool has_bias);
  // The group where it has several ranks.
  parallel::TensorGroup* group() const;
  int tensor_size() const;
  std::unique_ptr<nn::Norm> norm(const std::string& name);
  // Of the block whose parameters' names begin with `prefix`, and whose calls have these ids.
  std::unique_ptr<nn::Attention> attention(const std::string& prefix, const program::CallId& calls, const arch::Branch& branch);
  std::unique_ptr<nn::HeadNorm> head_norm(const std::string& name);  // null without qk_norm
  std::unique_ptr<nn::Mlp> mlp(const std::string& prefix, const program::CallId& calls, const arch::Branch& branch);
  nn::Dropout dropout(const std::string& site) const;
  std::optional<nn::Rotary> rotary(const at::TensorOptions& options);

  const arch::ModelConfig& model_;
  nn::ParameterSource& source_;
  const ModelOptions& options_;
  std::optional<nn::Rotary> rotary_;  // built with the first block
};

}  // namespace lockstep::model
