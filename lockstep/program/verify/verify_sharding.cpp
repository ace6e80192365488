#include "lockstep/program/verify/rules.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/program/effects.h"
#include "lockstep/program/verify/rank_check.h"

namespace lockstep::program {
namespace {

class GatherCheck : RankCheck {
 public:
  GatherCheck(const Program& program, const Layout& layout, int rank) : RankCheck(program, layout, rank) {
    for (const arch::FlatUnit& unit : layout.flat_layout(rank).units)
      units_[unit.layer].bytes = unit.numel() * layout.element_size();
  }

  std::vector<std::string> run() {
    for (size_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      if (action.kind == ActionKind::kStep) step(action);
      if (gathers(action)) stepped_ ? gather_updated(i) : gather(i);
      if (drops(action)) drop(i);
      if (layout_.transient_parameters() && computes(action.kind)) compute(i);
    }
    if (stepped_ && updated_are_gathered())
      for (const auto& [layer, unit] : units_)
        if (unit.gathered_after_step != 1)
          problem("gather", cat(name(layer), " is gathered ", unit.gathered_after_step, " times after its STEP"));
    if (!stepped_) all_dropped("the end");
    return std::move(problems_);
  }

 private:
  struct Unit {
    int64_t bytes = 0;
    bool gathered = false;
    bool used = false;     // since it was gathered
    int last_use = -1;     // position
    bool dropped = false;  // since then
    int computed_before_drop = 0;
    bool stepped = false;
    int gathered_after_step = 0;
  };

  // From the ranks of dp_shard; with one shard the host takes their place.
  bool gathers(const Action& action) const {
    return action.kind == ActionKind::kUnshard || (layout_.shards() == 1 && action.kind == ActionKind::kFetch &&
                                                   action.moved == Moved::kParameters && layout_.offload.parameters);
  }
  bool drops(const Action& action) const {
    return action.kind == ActionKind::kReshard || (layout_.shards() == 1 && action.kind == ActionKind::kEvict &&
                                                   action.moved == Moved::kParameters && layout_.offload.parameters);
  }
  bool updated_are_gathered() const { return layout_.shards() > 1 && !layout_.sharded_parameters(); }

  void step(const Action& action) {
    if (!stepped_) all_dropped("STEP");
    stepped_ = true;
    for (auto& [layer, unit] : units_)
      if (action.unit < 0 || action.unit == layer) unit.stepped = true;
  }

  void gather_updated(size_t i) {
    Unit& unit = units_[actions_[i].unit];
    if (!updated_are_gathered()) return problem("gather", cat(text(i), " after STEP: the next step gathers it"));
    if (!unit.stepped) problem("gather", cat(text(i), " before its STEP"));
    unit.gathered_after_step += 1;
  }

  void gather(size_t i) {
    if (!layout_.transient_parameters()) return problem("gather", cat(text(i), ", but no parameters are sharded"));
    Unit& unit = units_[actions_[i].unit];
    if (unit.gathered) problem("gather", cat(text(i), " while it is gathered"));
    if (unit.dropped && unit.computed_before_drop == computed_)
      problem("reshard", cat(name(actions_[i].unit), " is dropped and gathered again at once"));
    unit.gathered = true;
    unit.used = false;
  }

  void drop(size_t i) {
    Unit& unit = units_[actions_[i].unit];
    if (!unit.gathered)
      problem("reshard", cat(text(i), " of what is not gathered"));
    else if (!unit.used)
      problem("reshard", cat(text(i), " before anything read it"));
    unit.gathered = false;
    unit.dropped = true;
    unit.computed_before_drop = computed_;
  }

  void compute(size_t i) {
    ++computed_;
    for (int layer : units_read(actions_[i], table_)) {
      Unit& unit = units_[layer];
      if (!unit.gathered) problem("gather", cat(text(i), " reads ", name(layer), ", which is not gathered"));
      if (unit.dropped && unit.last_use >= 0 && stays(layer, static_cast<size_t>(unit.last_use), i))
        problem("reshard", cat(name(layer), " is dropped between ", text(static_cast<size_t>(unit.last_use)), " and ",
                               text(i), ", where this layout keeps it"));
      unit.used = true;
      unit.dropped = false;
      unit.last_use = static_cast<int>(i);
    }
    int64_t waiting = 0;
    for (const auto& [layer, unit] : units_) waiting += unit.gathered && !unit.used ? unit.bytes : 0;
    if (waiting > layout_.prefetch_limit)
      problem("prefetch", cat(waiting, " bytes wait beside ", text(i), "; prefetch_limit is ", layout_.prefetch_limit));
  }

  // Whether a unit that is read at `from` and next at `to` is to be kept in between.
  bool stays(int layer, size_t from, size_t to) const {
    if (actions_[from].microbatch == actions_[to].microbatch && !layout_.reshard_after_forward) return true;
    if (actions_[from].microbatch != actions_[to].microbatch && !layout_.reshard_after_microbatch) return true;
    for (size_t i = from + 1; i < to; ++i) {
      for (int read : units_read(actions_[i], table_))
        if (read != layer) return false;
    }
    return true;
  }

  void all_dropped(const char* when) {
    if (!layout_.transient_parameters()) return;
    for (const auto& [layer, unit] : units_)
      if (unit.gathered) problem("reshard", cat(name(layer), " is still gathered at ", when));
  }

  std::map<int, Unit> units_;
  int computed_ = 0;  // computing actions so far
  bool stepped_ = false;
};

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

std::vector<std::string> check_gathered(const Program& program, const Layout& layout, int rank) {
  return GatherCheck(program, layout, rank).run();
}

std::vector<std::string> check_sharded_gradients(const Program& program, const Layout& layout, int rank) {
  return GradientCheck(program, layout, rank).run();
}

}  // namespace lockstep::program
