// Matrices that are updated whole and that no rank has whole (arch::is_scattered_matrix): who orthogonalises which, and what moves
// there and back. A function of the layout alone, the same on all ranks of a group.
#pragma once

#include <cstdint>
#include <map>
#include <string>
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
  // Of the group of `rank`.
  MatrixPlan(const Layout& layout, int rank);

  const GroupRef& group() const { return group_; }
  int member() const { return member_; }  // `rank` in it
  const std::vector<ScatteredMatrix>& of(int unit) const;  // by its id; empty where there are none
  // All messages of a unit, to owners or back, in one order for all members: so that nobody waits for whom waits for it.
  std::vector<MatrixMessage> messages(int unit, bool to_owners) const;
  // Bytes of one element on the wire, which the iteration begins and ends with: nothing is lost.
  int64_t element_size() const { return element_size_; }
  // Bytes that a member at most holds of a unit between the two: matrices of an owner, pieces of the others.
  int64_t most_bytes(int unit) const;

 private:
  GroupRef group_;
  int member_ = 0;
  int64_t element_size_ = 2;
  std::map<int, std::vector<ScatteredMatrix>> units_;
};

// The ranks that share matrices: over the shard view and tp.
GroupRef matrix_group(const Layout& layout);
// The rank has a part of such matrices in the unit, or with -1 in any. Alike on all ranks of a coordinate on pp.
bool scatters_matrices(const Layout& layout, int rank, int unit = -1);

}  // namespace lockstep::program
