#include "lockstep/program/program.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::program {

std::string label_range(int first, int last, int num_layers) {
  if (first == last) return layer_label(first, num_layers);
  return cat(layer_label(first, num_layers), "..", layer_label(last, num_layers));
}

std::string layer_label(int layer, int num_layers) {
  if (num_layers > 0 && layer >= 3 * num_layers) return layer_label(layer - 3 * num_layers, num_layers) + " fp32";
  if (num_layers > 0 && layer >= 2 * num_layers) return layer_label(layer - 2 * num_layers, num_layers) + " experts";
  if (num_layers > 0 && layer >= num_layers) return layer_label(layer - num_layers, num_layers) + " rows";
  if (layer == 0) return "embed";
  return layer == num_layers - 1 ? "head" : cat("b", layer - 1);
}

std::string part_letter(const Action& action) {
  return action.part < 0 ? std::string() : std::string(1, static_cast<char>('a' + action.part));
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
  if (action.layer >= 0) text += " " + layer_label(action.layer, num_layers) + part_letter(action);
  if (action.microbatch >= 0) text += cat(" m", action.microbatch);
  return text;
}

Program Program::of_ranks(std::vector<std::vector<Action>> ranks) {
  Program program;
  for (std::vector<Action>& actions : ranks) {
    const auto known = std::ranges::find(program.lists, actions);
    program.list_of.push_back(static_cast<int32_t>(known - program.lists.begin()));
    if (known == program.lists.end()) program.lists.push_back(std::move(actions));
  }
  return program;
}

std::vector<int> Program::first_ranks() const {
  std::vector<int> first(lists.size(), -1);
  size_t found = 0;
  for (size_t rank = 0; rank < list_of.size() && found < lists.size(); ++rank) {
    int& of_list = first.at(static_cast<size_t>(list_of[rank]));
    if (of_list >= 0) continue;
    of_list = static_cast<int>(rank);
    ++found;
  }
  LOCKSTEP_CHECK_EQ(found, lists.size(), "lists that a rank runs, and all of them");
  return first;
}

}  // namespace lockstep::program
