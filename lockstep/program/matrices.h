// Matrices that are updated whole and that no rank has whole (arch::is_scattered_matrix): who orthogonalises which, and what moves
// there and back. A function of the layout alone, the same on all ranks of a group. Each parameter group has groups of its own: those
// of dense matrices are over its shard view and tp, those of rows over its shard view, those of experts over edp_shard and etp.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// What a member of the group holds of a matrix: elements [begin, begin + numel) of its local piece [local_shape], row-major, which
// lies at local_offset of the whole.
struct HeldPiece {
  int holder = 0;
  int64_t begin = 0;
  int64_t numel = 0;
  int copy = 0;  // which of the members with the same elements: the first gives them, all get them back
  std::vector<int64_t> local_shape{};
  std::vector<int64_t> local_offset{};
};

struct ScatteredMatrix {
  int param = 0;  // row of the table of every member
  int64_t rows = 0;
  int64_t columns = 0;
  int owner = 0;  // member that orthogonalises it
  std::vector<HeldPiece> pieces{};
  double flops(int iterations) const;
};

// A piece on its way, from member to member: a send there, a recv here.
struct MatrixMessage {
  size_t matrix = 0;  // of the unit's, and its piece
  size_t piece = 0;
  int from = 0;
  int to = 0;
};

class MatrixPlan {
 public:
  // Of the groups of `rank`.
  MatrixPlan(const Layout& layout, int rank);

  const std::vector<ScatteredMatrix>& of(int unit) const;  // by its id; empty where there are none
  // Of a unit that has some, else InternalError: the ranks that share them, and `rank` among these.
  const GroupRef& group(int unit) const { return sharing(unit).group; }
  int member(int unit) const { return sharing(unit).member; }
  // All messages of a unit, to owners or back, in one order for all members: so that nobody waits for whom waits for it.
  std::vector<MatrixMessage> messages(int unit, bool to_owners) const;
  // Bytes of one element on the wire, which the iteration begins and ends with: nothing is lost.
  int64_t element_size() const { return element_size_; }
  // Bytes that a member at most holds of a unit between the two: matrices of an owner, pieces of the others.
  int64_t most_bytes(int unit) const;

 private:
  struct Sharing {
    GroupRef group{};
    int member = 0;
  };
  void add(const Layout& layout, int rank, arch::ParameterGroup group);  // which has some
  const Sharing& sharing(int unit) const;

  int64_t element_size_ = 2;
  int num_layers_ = 1;                                // of the layer table
  std::map<int, std::vector<ScatteredMatrix>> units_;  // by id
  std::map<arch::ParameterGroup, Sharing> sharing_;    // of those that have some
};

// The ranks that share the matrices of a parameter group.
GroupRef matrix_group(const Layout& layout, arch::ParameterGroup group = arch::ParameterGroup::kDense);
// The units of which the rank has a part of such matrices, by id. Alike on all ranks of a coordinate on pp: no rule tells experts apart
// that are on other ranks of ep (layout_problems).
std::set<int> scattered_units(const Layout& layout, int rank);
// Those of the parameter groups that have some.
std::vector<GroupRef> matrix_groups(const Layout& layout, int rank);

}  // namespace lockstep::program
