// How a tensor lies on one axis of the mesh, and how a length is cut into shards.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::mesh {

// Replicate: every rank of the axis holds the same values. Shard(dim): rank i holds part i along `dim`.
// Partial: the value is the sum over the axis and has not been summed yet.
class Placement {
 public:
  enum class Kind { kReplicate, kShard, kPartial };
  static Placement replicate() { return Placement(Kind::kReplicate, -1); }
  static Placement shard(int dim) { return Placement(Kind::kShard, dim); }
  static Placement partial() { return Placement(Kind::kPartial, -1); }

  Kind kind() const { return kind_; }
  int dim() const { return dim_; }  // of Shard; -1 otherwise
  bool is_replicate() const { return kind_ == Kind::kReplicate; }
  bool is_shard() const { return kind_ == Kind::kShard; }
  bool is_partial() const { return kind_ == Kind::kPartial; }
  std::string describe() const;  // "Replicate", "Shard(0)", "Partial"
  bool operator==(const Placement&) const = default;

 private:
  Placement(Kind kind, int dim) : kind_(kind), dim_(dim) {}
  Kind kind_ = Kind::kReplicate;
  int dim_ = -1;
};

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `length` cut into `parts`: contiguous, in order, sizes differ by at most one (the first ones longer).
Range shard_range(int64_t length, int parts, int index);

}  // namespace lockstep::mesh
