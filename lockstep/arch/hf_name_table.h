// The table of tensor names: for hf_names.cpp.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "lockstep/arch/params.h"

namespace lockstep::arch {

// How a weight is stored.
enum class HfStored {
  kAsOurs,
  kTransposed,
  kStacked,      // the weights of all experts in one tensor, under the module's bare name
  kTurnedStack,  // the same, each [in, out]; of several rows of the table, their outputs in turn
  kBiasStack,    // the biases of all experts in one tensor, under the row's bare name; of several rows, in turn
  kAlone,        // the weight, and a bias of ours has no place
  kBare,         // the weight alone, under the row's bare name
  kBareBias,     // the bias alone, under the row's bare name, in fp32 whatever the dtype of the others
  kByHeads,      // the outputs of one head of each row of the table, then those of the next head
  kFilter,       // [C, 1, W]
};

// A module of a layer: its name in the layer of theirs and of ours; # is the number of an expert, @ what the family calls a mixer. Which
// of its weight and bias exist, the parameter table says.
struct HfRow {
  LayerKind layer;
  std::string_view theirs;
  std::string_view ours;
  HfStored stored = HfStored::kAsOurs;
};

// Of one kind of names.
struct HfNameTable {
  std::string_view prefix;  // of all but the head
  std::string_view blocks;  // behind it: "h." of "h.3.ln_1.weight"
  std::vector<std::span<const HfRow>> rows;
  std::span<const std::string_view> ignored = {};
  std::vector<std::span<const HfRow>> stacked_rows = {};  // instead, where experts are stacked
  std::string_view mixer = {};         // a state space
  std::string_view other_prefix = {};  // which files may have instead
  std::string_view head = "lm_head.weight";
};

const HfNameTable& hf_name_table(Family family);
// Of all families with two forms, where experts are stacked.
std::span<const HfRow> stacked_expert_rows();

}  // namespace lockstep::arch
