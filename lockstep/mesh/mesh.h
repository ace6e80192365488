// The grid of ranks: rank <-> coordinates, and the groups of a view. Pure data; everything about "who with whom" derives from
// it, and nothing is stored per rank: a mesh of a million ranks costs as much as one of two.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "lockstep/mesh/view.h"

namespace lockstep::mesh {

// One number per axis of the mesh: a degree or a coordinate.
class PerAxis {
 public:
  static PerAxis ones();
  int& operator[](Axis axis) { return values_.at(static_cast<size_t>(axis)); }
  int operator[](Axis axis) const { return values_.at(static_cast<size_t>(axis)); }
  bool operator==(const PerAxis&) const = default;

 private:
  std::array<int, kAxes.size()> values_{};
};

class Mesh {
 public:
  Mesh() : Mesh(PerAxis::ones()) {}                     // one rank
  explicit Mesh(const PerAxis& degrees);       // every degree >= 1, else InternalError: layouts are checked in config/
  static Mesh data_parallel(int dp);           // dp_replicate = dp, all other axes 1

  int world_size() const { return world_size_; }
  int degree(Axis axis) const { return degrees_[axis]; }  // of the mesh's own axes
  int degree(AxisSet axes) const;                         // of them too: product
  PerAxis coordinates(int rank) const;
  int rank(const PerAxis& coordinates) const;

  // The group of `rank` under a view: the ranks that differ from it only along the view's axes, ascending; `rank` is one of
  // them. A group of one where all degrees are 1. InternalError for an axis that neither the mesh nor the fold has, and for
  // a fold of another number of ranks than its block.
  int degree(const View& view) const;                          // ranks of every group
  std::vector<int> group(int rank, const View& view) const;
  int group_rank(int rank, const View& view) const;            // where `rank` stands in it
  int member(int rank, const View& view, int index) const;     // who stands there: the inverse
  // The axes, of the mesh and under a fold, that have several ranks.
  AxisSet several(const Fold& fold = {}) const;
  // The same groups by the axes that have several ranks. Views that differ in axes of one rank alone become equal.
  View reduced(const View& view) const;

  // "pp1 dp_replicate2 tp0": only axes with a degree above 1; "-" for one rank.
  std::string describe(int rank) const;
  bool operator==(const Mesh&) const = default;

 private:
  // Axes as digits of a rank's number: rank / stride % degree; slowest first.
  struct Digit {
    int degree, stride;
  };
  struct Digits {
    std::array<Digit, kAxes.size() + Fold::kMaxFactors> all{};
    size_t count = 0;
    const Digit* begin() const { return all.data(); }
    const Digit* end() const { return all.data() + count; }
  };
  Digits digits(const View& view) const;
  void check_rank(int rank) const;

  PerAxis degrees_;
  int world_size_ = 1;
};

}  // namespace lockstep::mesh
