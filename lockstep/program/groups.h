// Groups of ranks by what they are for: who sums a gradient, who shares out states, who holds copies, who hands over
// activations. The layout says which axes that are (Layout::samples() and its neighbours); nobody else names them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/mesh/view.h"

namespace lockstep::program {

struct Layout;

// What the calls of a group wait for: each other on one channel, in the order in which they were made; over the same ranks on
// another channel, nothing.
enum class Channel : uint8_t {
  kStep,      // collectives of a step, in the order of the list
  kForward,   // activations, from a stage to the next
  kBackward,  // their gradients, back
  kTied,      // sums of a unit that two stages hold
  kExperts,   // tokens on their way to experts and back, inside layers: never behind buckets of gradients
  kContext,   // keys, values and their gradients between the parts of a sequence, inside layers
  kControl,   // of all ranks beside the step: stopping together, checkpoints, verdicts
};

// One communicator: a set of ranks and a channel. The same on all its ranks, and arithmetic: no list of ranks is kept.
// Equal on a rank exactly where the communicator is the same; made by the functions below alone.
struct GroupRef {
  mesh::View view{};  // reduced (Mesh::reduced)
  Channel channel = Channel::kStep;
  // Of the view's group these two members alone, in this order; -1: all of it.
  int first = -1, second = -1;
  bool is_pair() const { return first >= 0; }
  auto operator<=>(const GroupRef&) const = default;
};
GroupRef group_over(const Layout& layout, const mesh::View& view, Channel channel = Channel::kStep);
// From the rank of one coordinate on pp to that of another, the sender first: activations, or their gradients.
GroupRef stage_link(int from, int to, bool forward);
// This rank and Layout::tied_peer, which it must have.
GroupRef tied_pair(const Layout& layout, int rank);
// The ranks of tp that hold the same key/value heads: `copies` neighbours (arch::ParamSpec::copies).
mesh::View same_heads(const Layout& layout, int copies);

int group_size(const Layout& layout, const GroupRef& group);
int group_rank(const Layout& layout, int rank, const GroupRef& group);               // of `rank`, which is in it
std::vector<int> group_ranks(const Layout& layout, int rank, const GroupRef& group);  // world ranks in group order
// The name in ledgers and messages: "dp" where the group has all ranks of the sample axes (or they have one rank), else
// "dp_shard", "dp_replicate"; "tp", "pp", "cp", "kv"; "cp_inner" and "cp_outer"; "dp_cp" and "dp_shard_cp", "cp_tp", "dp_cp_tp" and "dp_shard_cp_tp"; "ep", "etp" or "ep_etp", "ep_nodes" and "ep_node", and "edp" with its parts, alone and beside etp; "model" over both tp and pp; "replica" over all ranks where these have
// several and there are several samples too; "tied"; "world".
std::string group_name(const Layout& layout, const GroupRef& group);

// Every group that a step of `rank` and what is between steps communicate over, in the order in which communicators are
// made: of any two ranks, the groups that both are in come in the same order. Of one rank only the group that sums gradients
// and the world.
std::vector<GroupRef> groups_of(const Layout& layout, int rank);

// Over which ranks the parameters of a group are trained together. sum = shard x copies.
struct Domain {
  mesh::View sum{};     // their gradients are parts of one sum: other tokens
  mesh::View shard{};   // share out states: of the optimizer (zero 1), gradients too (2), parameters too (3)
  mesh::View copies{};  // hold the same share
  int owner = -1;       // the member of `copies` that alone holds states: a parameter server; -1: every one does
  bool operator==(const Domain&) const = default;
};

}  // namespace lockstep::program
