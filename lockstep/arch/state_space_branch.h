// A state space as a kind of branch (Mamba-2: Dao and Gu, Transformers are SSMs, 2024): what a rank has of it, and its steps.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/arch/branch_kind.h"

namespace lockstep::arch {

// Of rank `rank` of `size` ranks of tp. Heads are cut; so are groups of B and C where their number is a multiple of the ranks, else a rank
// makes B and C of all groups and its heads read those of one.
struct StateSpacePart {
  StateSpacePart(const StateSpaceSizes& sizes, int size, int rank);
  const StateSpaceSizes sizes;  // of the whole model
  int64_t heads = 0;            // H, here
  int64_t groups = 0;           // of B and C here
  int64_t first_group = 0;      // of these, the ones that the heads here read
  int64_t read_groups = 0;
  int64_t norm_groups = 0;      // here; 0: no norm
  bool norm_is_cut = false;     // the norm's group lies on all ranks, whose sums are added up
  int64_t inner() const { return heads * sizes.head_size; }
  int64_t convolved() const { return inner() + 2 * groups * sizes.state; }    // x | B | C
  int64_t projected() const { return inner() + convolved() + heads; }        // z | x | B | C | dt
};

std::unique_ptr<WholeBranch> new_state_space_branch(LayerBuilder& b, const Branch& branch);

}  // namespace lockstep::arch
