// How a tensor lies on one axis of the mesh, and how a length is cut into shards.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::mesh {

// Replicate: every rank of the axis holds the same values. Shard(dim): rank i holds part i along `dim`; with copies c
// there are as many parts as ranks / c, and rank i holds part i / c.
// Partial: the value is the sum over the axis and has not been summed yet.
class Placement {
 public:
  enum class Kind { kReplicate, kShard, kPartial };
  static Placement replicate() { return Placement(Kind::kReplicate, -1); }
  static Placement shard(int dim, int copies = 1) { return Placement(Kind::kShard, dim, copies); }
  static Placement partial() { return Placement(Kind::kPartial, -1); }

  Kind kind() const { return kind_; }
  int dim() const { return dim_; }        // of Shard; -1 otherwise
  int copies() const { return copies_; }  // of Shard: neighbouring ranks that hold the same part
  bool is_replicate() const { return kind_ == Kind::kReplicate; }
  bool is_shard() const { return kind_ == Kind::kShard; }
  bool is_partial() const { return kind_ == Kind::kPartial; }
  std::string describe() const;  // "Replicate", "Shard(0)", "Shard(0) in 2 copies", "Partial"
  bool operator==(const Placement&) const = default;

 private:
  Placement(Kind kind, int dim, int copies = 1) : kind_(kind), dim_(dim), copies_(copies) {}
  Kind kind_ = Kind::kReplicate;
  int dim_ = -1;
  int copies_ = 1;
};

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `length` cut into `parts`: contiguous, in order, sizes differ by at most one (the first ones longer).
Range shard_range(int64_t length, int parts, int index);

// The same in parts of ceil(length / parts): what lies behind the last element is padding, so the last parts may be
// shorter or empty, and equal buffers side by side hold the whole without a gap.
Range padded_range(int64_t length, int parts, int index);
int64_t padded_part(int64_t length, int parts);  // ceil(length / parts)

}  // namespace lockstep::mesh
