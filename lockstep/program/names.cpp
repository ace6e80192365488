#include "lockstep/program/names.h"

#include "lockstep/base/text.h"

namespace lockstep::program {

std::string label_range(int first, int last, int num_layers) {
  if (first == last) return layer_label(first, num_layers);
  return cat(layer_label(first, num_layers), "..", layer_label(last, num_layers));
}

std::string layer_label(int layer, int num_layers) {
  if (num_layers > 0 && layer >= num_layers) return layer_label(layer - num_layers, num_layers) + " rows";
  if (layer == 0) return "embed";
  return layer == num_layers - 1 ? "head" : cat("b", layer - 1);
}

std::string action_text(const Action& action, const std::vector<Bucket>& buckets, int num_layers) {
  std::string text(action_name(action.kind));
  if (action.bucket >= 0) {
    const std::vector<int>& units = buckets.at(static_cast<size_t>(action.bucket)).units;
    text += " " + label_range(units.front(), units.back(), num_layers);
  }
  if (is_move(action.kind)) {
    if (action.moved == Moved::kOptimizer) text += " state of";
    if (action.moved == Moved::kActivation) text += " input of";
  }
  if (action.unit >= 0) text += " " + layer_label(action.unit, num_layers);
  if (action.stage >= 0) text += cat(" stage ", action.stage);
  if (action.layer >= 0) text += " " + layer_label(action.layer, num_layers);
  if (action.microbatch >= 0) text += cat(" m", action.microbatch);
  return text;
}

}  // namespace lockstep::program
