#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/program/effects.h"
#include "lockstep/program/verify/rank_check.h"
#include "lockstep/program/verify/rules.h"

namespace lockstep::program {
namespace {

// Gradients that are added up over the step and then summed once.
class ReductionCheck : RankCheck {
 public:
  ReductionCheck(const Program& program, const Layout& layout, int rank) : RankCheck(program, layout, rank) {}

  std::vector<std::string> run() {
    const ActionKind wanted = layout_.server_mode() ? ActionKind::kPush : ActionKind::kReduceGrad;
    for (size_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      if (adds_to_weights(action.kind)) weight_[action.layer].push_back(i);
      if (action.kind == wanted)
        reductions_[action.bucket].push_back(i);
      else if (reduces(action.kind))
        problem("reduce", cat(text(i), " is not how this layout reduces"));
    }
    for (int bucket = 0; bucket < static_cast<int>(program_.buckets.size()); ++bucket) check(bucket);
    return std::move(problems_);
  }

 private:
  void check(int index) {
    const Bucket& bucket = program_.buckets[static_cast<size_t>(index)];
    const std::vector<size_t>& at = reductions_[index];
    const bool shared = bucket.pipeline == layout_.pipeline_rank(rank_) && layout_.mesh.degree(layout_.tokens()) > 1;
    if (at.size() != (shared ? 1u : 0u)) return problem("reduce", cat("bucket ", index, " is reduced ", at.size(), " times"));
    if (at.empty()) return;
    for (const int layer : writers(bucket, table_))
      for (const size_t position : weight_[layer])
        if (position > at[0]) problem("complete", cat(text(position), " adds to the gradients after ", text(at[0])));
  }

  std::map<int, std::vector<size_t>> weight_;      // B and W, by layer
  std::map<int, std::vector<size_t>> reductions_;  // by bucket
};

// Those that are shared out, or live until this rank's part of them is added to what it keeps.
class GradientCheck : RankCheck {
 public:
  GradientCheck(const Program& program, const Layout& layout, int rank) : RankCheck(program, layout, rank) {}

  std::vector<std::string> run() {
    const int last = static_cast<int>(layout_.num_microbatches()) - 1;
    for (size_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      for (int unit : units_written(action, table_, num_layers_ - 1))
        writes_[unit][layout_.reduces_once() && layout_.transient_gradients() ? last : action.microbatch].push_back(i);
      if (action.kind == ActionKind::kReduceGrad) reduce_[{action.bucket, action.microbatch}].push_back(i);
      if (action.kind == ActionKind::kShardGrad) shard_[{action.bucket, action.microbatch}].push_back(i);
      if (action.kind == ActionKind::kReduceShard) replicate_[action.bucket].push_back(i);
      if (action.kind == ActionKind::kPush) problem("reduce", cat(text(i), " is not how this layout reduces"));
    }
    for (int bucket = 0; bucket < static_cast<int>(program_.buckets.size()); ++bucket) {
      if (program_.buckets[static_cast<size_t>(bucket)].pipeline != layout_.pipeline_rank(rank_)) continue;
      size_t settled = 0;
      if (layout_.transient_gradients())
        settled = every_microbatch(bucket);
      else
        settled = whole_step(bucket);
      reduce_shard(bucket, settled);
    }
    for (const auto& [key, positions] : reduce_)
      if (!positions.empty()) problem("reduce", cat(text(positions[0]), " is not wanted"));
    for (const auto& [key, positions] : shard_)
      if (!positions.empty()) problem("shard_grad", cat(text(positions[0]), " is not wanted"));
    return std::move(problems_);
  }

 private:
  using Key = std::pair<int, int>;  // bucket, microbatch
  const std::vector<int>& layers(int bucket) const { return program_.buckets[static_cast<size_t>(bucket)].layers; }
  std::string bucket_name(int bucket, int microbatch) const {
    const std::string units = layers(bucket).empty() ? "" : name(layers(bucket).front());
    return microbatch < 0 ? cat("bucket ", bucket, " (", units, ")")
                          : cat("bucket ", bucket, " (", units, ") m", microbatch);
  }

  // The one position of what must be there `wanted` times (0 or 1); 0 where it is not.
  size_t only(const char* rule, const char* what, int bucket, int microbatch, std::vector<size_t> found,
              size_t wanted) {
    if (found.size() != wanted)
      problem(rule, cat(bucket_name(bucket, microbatch), " has ", found.size(), " ", what, "; should be ", wanted));
    return found.size() == 1 && wanted == 1 ? found[0] : 0;
  }
  static std::vector<size_t> take(std::map<Key, std::vector<size_t>>& found, Key key) {
    return std::exchange(found[key], {});
  }

  size_t whole_step(int bucket) {
    const size_t at = only("reduce", "REDUCE_GRAD", bucket, -1, take(reduce_, {bucket, -1}), 1);
    if (at == 0) return 0;
    for (int unit : layers(bucket))
      for (const auto& [microbatch, writes] : writes_[unit])
        for (size_t write : writes)
          if (write > at) problem("complete", cat(text(write), " adds to the gradients after ", text(at)));
    return at;
  }

  size_t every_microbatch(int bucket) {
    size_t settled = 0;
    if (layers(bucket).empty()) return 0;
    const auto& writes = writes_[layers(bucket).front()];
    for (const auto& [microbatch, of_this] : writes) {
      const Key key{bucket, microbatch};
      const size_t reduced =
          only("reduce", "REDUCE_GRAD", bucket, microbatch, take(reduce_, key), layout_.shards() > 1 ? 1 : 0);
      const size_t sharded = only("shard_grad", "SHARD_GRAD", bucket, microbatch, take(shard_, key), 1);
      if (sharded == 0) continue;
      settled = std::max(settled, sharded);
      if (reduced > sharded) problem("shard_grad", cat(text(sharded), " before its REDUCE_GRAD"));
      const size_t start = reduced > 0 ? reduced : sharded;
      for (size_t write : of_this)
        if (write > start) problem("complete", cat(text(write), " adds to the gradients after ", text(start)));
      check_alone(writes, microbatch, of_this.front(), sharded);
    }
    return settled;
  }

  // Between the first gradients of a microbatch and their SHARD_GRAD no other microbatch writes into the same buffer.
  void check_alone(const std::map<int, std::vector<size_t>>& writes, int microbatch, size_t first, size_t sharded) {
    for (const auto& [other, positions] : writes)
      for (size_t write : positions)
        if (other != microbatch && write > first && write < sharded)
          problem("complete", cat(text(write), " before ", text(sharded)));
  }

  void reduce_shard(int bucket, size_t settled) {
    const size_t wanted = layout_.mesh.degree(mesh::Axis::kDpReplicate) > 1 ? 1 : 0;
    const size_t at = only("reduce_shard", "REDUCE_SHARD", bucket, -1, replicate_[bucket], wanted);
    if (at > 0 && at < settled) problem("reduce_shard", cat(text(at), " before ", text(settled)));
  }

  std::map<int, std::map<int, std::vector<size_t>>> writes_;  // unit -> microbatch -> positions
  std::map<Key, std::vector<size_t>> reduce_, shard_;
  std::map<int, std::vector<size_t>> replicate_;
};

}  // namespace

std::vector<std::string> check_reductions(const Program& program, const Layout& layout, int rank) {
  return ReductionCheck(program, layout, rank).run();
}

std::vector<std::string> check_sharded_gradients(const Program& program, const Layout& layout, int rank) {
  return GradientCheck(program, layout, rank).run();
}

}  // namespace lockstep::program
