#include "lockstep/plan/search/pipeline_shape.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/passes/schedules.h"
#include "lockstep/program/pipeline.h"

namespace lockstep::plan {
namespace {

using program::Action;
using program::Work;

constexpr double kNever = std::numeric_limits<double>::infinity();

// One row of the table of balanced_cut(): of the layers in front of each end, the dearest stage of the best cut.
class CutRow {
 public:
  CutRow(const std::vector<double>& sums, bool a_block_each) : sums_(sums), layers_(static_cast<int>(sums.size()) - 1), a_block_each_(a_block_each) {}

  double cost(int begin, int end) const {
    const int inner = std::min(end, layers_ - 1) - std::max(begin, 1);
    if (a_block_each_ && inner < 1) return kNever;
    return sums_[static_cast<size_t>(end)] - sums_[static_cast<size_t>(begin)];
  }

  // `above`: the row of one stage fewer. Fills `cut` with where the last stage begins, the first of equally good borders. In front of
  // `meeting` the stage at hand decides, from there on those in front of it.
  std::vector<double> next(const std::vector<double>& above, int stage, std::vector<int>& cut) const {
    std::vector<double> row(above.size(), kNever);
    int least = stage;
    while (least < layers_ && above[static_cast<size_t>(least)] == kNever) ++least;
    int meeting = least;
    for (int end = least + 1; end <= layers_; ++end) {
      const auto dearest = [&](int begin) { return std::max(above[static_cast<size_t>(begin)], cost(begin, end)); };
      while (meeting < end - 1 && above[static_cast<size_t>(meeting)] < cost(meeting, end)) ++meeting;
      int best = meeting;
      while (best > least && dearest(best - 1) <= dearest(best)) --best;
      if (dearest(best) == kNever) continue;
      row[static_cast<size_t>(end)] = dearest(best);
      cut[static_cast<size_t>(end)] = best;
    }
    return row;
  }

 private:
  const std::vector<double>& sums_;
  const int layers_;
  const bool a_block_each_;
};

// What may weigh most, over what is kept of a microbatch between its F and its I: what is kept of it for W, which depends on the layer and on
// what it computes again; the gradients of a chunk, where they come with its first backward pass; and messages, which are as large as what is
// kept of a layer where all of it is computed again.
constexpr int kBlock = 16;  // what a block keeps over what the embedding or the head does, about
struct Weights {
  double held = 1, opened = 0.001, messages = 0.03;
};
constexpr Weights kWeights[] = {{0.25}, {0.5}, {1}, {2}, {4}, {16}, {0.5, 1000}, {2, 1000}, {16, 1000}, {1, 0.001, 1}, {16, 0.001, 1}};
using Weighed = std::array<double, std::size(kWeights)>;

Weighed weighed(const Moment& moment) {
  Weighed sums{};
  for (size_t way = 0; way < sums.size(); ++way)
    sums[way] = moment.layers_saved + kWeights[way].held * moment.layers_held + kWeights[way].opened * moment.layers_opened +
                kWeights[way].messages * kBlock * moment.messages;
  return sums;
}

// Keeps for each kind of work, chunk and next chunk the moments at which most is there, weighed each way.
class MostMoments {
 public:
  void add(const Moment& one) {
    Known& known = known_of(one);
    if (one.layers_saved <= known.saved && one.layers_held <= known.held && one.layers_opened <= known.opened && one.messages <= known.messages) return;
    const Weighed sums = weighed(one);
    Weighed& most = known.most;
    bool more = false;
    for (size_t way = 0; way < sums.size(); ++way) {
      more |= sums[way] > most[way];
      most[way] = std::max(most[way], sums[way]);
    }
    if (!more) return;
    known.saved = one.layers_saved;
    known.held = one.layers_held;
    known.opened = one.layers_opened;
    known.messages = one.messages;
    std::erase_if(moments_, [&](const Moment& other) {
      if (other.work != one.work || other.chunk != one.chunk || other.next != one.next) return false;
      return std::ranges::equal(weighed(other), most, [](double sum, double largest) { return sum < largest; });
    });
    moments_.push_back(one);
  }
  std::vector<Moment> take() { return std::move(moments_); }

 private:
  struct Known {
    int saved = -1, held = -1, opened = -1, messages = -1;  // of the last one that was added
    Weighed most{};
  };
  Known& known_of(const Moment& one) {
    const size_t chunks = one.saved.size(), kind = static_cast<size_t>(one.work) * chunks + static_cast<size_t>(one.chunk);
    const size_t place = kind * (chunks + 1) + static_cast<size_t>(one.next + 1);
    if (place >= known_.size()) known_.resize(place + 1);
    return known_[place];
  }

  std::vector<Moment> moments_;
  std::vector<Known> known_;  // by kind of work, chunk and what is next
};

// What a rank keeps while its list runs. Of each neighbour and direction the last message is on its way until the next one goes
// (program/passes/pass_transfer_activations.cpp).
class Keeping {
 public:
  Keeping(const program::Pipeline& pipeline, const RankGroup& group, int rank, const ShapeInput& input)
      : pipeline_(pipeline), group_(group), stages_(pipeline.stages_of(rank)), receives_early_(input.receives_early),
        shards_(input.shards_parameters), microbatches_(input.microbatches) {
    for (const ChunkLayers& chunk : group.chunks) {
      const int all = std::accumulate(chunk.layers.begin(), chunk.layers.end(), 0), blocks = all - chunk.embedding - chunk.head;
      layers_.push_back(all);
      kept_.push_back(kBlock * blocks + chunk.embedding + chunk.head);
    }
    now_.saved.resize(layers_.size());
    now_.held.resize(layers_.size());
    now_.opened.resize(layers_.size());
  }

  void run(const std::vector<Action>& actions, MostMoments& moments) {
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      now_.work = program::work_of(action.kind);
      now_.chunk = chunk_of_stage(action.stage);
      if (now_.work == Work::kForward) add_saved(1);
      look_ahead(i + 1 < actions.size() ? &actions[i + 1] : nullptr);
      moments.add(now_);
      if (now_.work == Work::kInput) add_held(1);
      if (now_.work == Work::kInput || now_.work == Work::kInputAndWeight) add_saved(-1);
      if (now_.work == Work::kWeight) add_held(-1);
      // Behind the last microbatch they are reduced.
      if (now_.work == Work::kWeight || now_.work == Work::kInputAndWeight) open(action.microbatch + 1 < microbatches_);
      send(action);
    }
  }

 private:
  size_t chunk() const { return static_cast<size_t>(now_.chunk); }
  void add_saved(int count) {
    now_.saved[chunk()] += count;
    now_.layers_saved += count * kept_[chunk()];
  }
  void add_held(int count) {
    now_.held[chunk()] += count;
    now_.layers_held += count * kept_[chunk()];
  }
  void open(bool opened) {
    if ((now_.opened[chunk()] != 0) == opened) return;
    now_.opened[chunk()] = opened ? 1 : 0;
    now_.layers_opened += (opened ? 1 : -1) * kBlock * layers_[chunk()];
  }

  void look_ahead(const Action* next) {
    const bool computes = next != nullptr && program::work_of(next->kind) != Work::kWeight;
    now_.next = computes && shards_ ? chunk_of_stage(next->stage) : -1;
    now_.next_forward = computes && program::work_of(next->kind) == Work::kForward;
    now_.messages = static_cast<int>(sent_.size()) + (receives_early_ && computes && receives(*next) ? 1 : 0);
  }
  int chunk_of_stage(int stage) const { return static_cast<int>(std::ranges::find(stages_, stage) - stages_.begin()); }
  bool receives(const Action& action) const {
    const auto chunk = static_cast<size_t>(chunk_of_stage(action.stage));
    const Work work = program::work_of(action.kind);
    return work == Work::kForward ? group_.before[chunk] != 0 : work != Work::kWeight && group_.behind[chunk] != 0;
  }
  void send(const Action& action) {
    const bool forward = now_.work == Work::kForward;
    if (now_.work == Work::kWeight || (forward ? group_.behind : group_.before)[chunk()] == 0) return;
    const std::pair way(pipeline_.rank_of(action.stage + (forward ? 1 : -1)), forward);
    if (std::ranges::find(sent_, way) == sent_.end()) sent_.push_back(way);
  }

  const program::Pipeline& pipeline_;
  const RankGroup& group_;
  const std::vector<int> stages_;
  const bool receives_early_, shards_;
  const int64_t microbatches_;
  std::vector<int> layers_, kept_;          // by chunk; of what is kept of it
  std::vector<std::pair<int, bool>> sent_;  // neighbours and directions to which something went
  Moment now_;
};

ChunkLayers chunk_of(int begin, int end, const Places& places) {
  ChunkLayers chunk{.layers = std::vector<int>(static_cast<size_t>(places.count()))};
  for (int layer = begin; layer < end; ++layer) {
    const int place = places.of(layer);
    ++chunk.layers[static_cast<size_t>(place)];
    chunk.embedding |= place == 0;
    chunk.head |= place == places.head();
    if (place == 0 || place == places.head()) continue;
    if (chunk.top < 0) chunk.bottom = place;
    chunk.second = chunk.top;
    chunk.top = place;
  }
  return chunk;
}

// Without its moments.
RankGroup group_of_rank(const program::Pipeline& pipeline, const Places& places, int rank) {
  RankGroup group{.first = rank, .layers = std::vector<int>(static_cast<size_t>(places.count()))};
  for (const int stage : pipeline.stages_of(rank)) {
    const auto at = static_cast<size_t>(stage);
    group.chunks.push_back(chunk_of(pipeline.first_layer[at], pipeline.first_layer[at + 1], places));
    for (size_t place = 0; place < group.layers.size(); ++place) group.layers[place] += group.chunks.back().layers[place];
    group.embedding |= group.chunks.back().embedding;
    group.head |= group.chunks.back().head;
    group.before.push_back(stage > 0 && pipeline.rank_of(stage - 1) != rank);
    group.behind.push_back(stage + 1 < pipeline.stages() && pipeline.rank_of(stage + 1) != rank);
  }
  return group;
}

}  // namespace

std::vector<int> balanced_cut(const std::vector<double>& costs, int stages) {
  std::vector<double> sums = {0};
  for (const double cost : costs) sums.push_back(sums.back() + cost);
  const int layers = static_cast<int>(costs.size());
  LOCKSTEP_CHECK(stages >= 1 && stages <= layers, stages, " stages of ", layers, " layers");
  const CutRow rows(sums, layers - 2 >= stages);
  std::vector<std::vector<int>> cuts(static_cast<size_t>(stages), std::vector<int>(sums.size()));
  std::vector<double> row(sums.size(), kNever);
  for (int end = 1; end <= layers; ++end) row[static_cast<size_t>(end)] = rows.cost(0, end);
  for (int stage = 1; stage < stages; ++stage) row = rows.next(row, stage, cuts[static_cast<size_t>(stage)]);
  std::vector<int> first(static_cast<size_t>(stages) + 1, layers);
  for (int stage = stages - 1; stage >= 0; --stage)
    first[static_cast<size_t>(stage)] = stage == 0 ? 0 : cuts[static_cast<size_t>(stage)][static_cast<size_t>(first[static_cast<size_t>(stage) + 1])];
  return first;
}

// From so many on a pipeline is once full: F are at most p - 1 ahead of I, with zb-h2 twice that and with several stages a rank three times,
// and I as far ahead of W. Two more: gradients come with the first and are reduced behind the last.
int64_t microbatches_that_matter(const ShapeInput& input) {
  using config::ScheduleKind;
  if (input.schedule == ScheduleKind::kGPipe) return input.microbatches;
  const bool once = input.schedule == ScheduleKind::kOneFOneB || input.schedule == ScheduleKind::kNaive || input.schedule == ScheduleKind::kZbH1;
  const int64_t full = int64_t{once ? 1 : input.schedule == ScheduleKind::kZbH2 ? 2 : 3} * input.ranks;
  return std::min(input.microbatches, full + (input.schedule == ScheduleKind::kInterleaved ? 0 : 2));
}

PipelineShape pipeline_shape(const std::vector<int>& first_layer, const Places& places, const ShapeInput& input) {
  const program::Pipeline pipeline{.kind = input.schedule, .ranks = input.ranks, .virtual_stages = input.virtual_stages, .first_layer = first_layer};
  ShapeInput shorter = input;
  shorter.microbatches = microbatches_that_matter(input);
  const auto lists = program::make_schedule({.kind = input.schedule, .ranks = input.ranks, .virtual_stages = input.virtual_stages,
                                             .microbatches = static_cast<int>(shorter.microbatches)});
  PipelineShape shape;
  std::vector<MostMoments> most;  // by group
  std::vector<size_t> group_of;   // by rank
  for (int rank = 0; rank < input.ranks; ++rank) {
    RankGroup group = group_of_rank(pipeline, places, rank);
    const auto alike = [&](const RankGroup& other) { return other.chunks == group.chunks && other.before == group.before && other.behind == group.behind; };
    auto found = std::ranges::find_if(shape.groups, alike);
    if (found == shape.groups.end()) {
      found = shape.groups.insert(found, std::move(group));
      most.emplace_back();
    }
    ++found->ranks;
    group_of.push_back(static_cast<size_t>(found - shape.groups.begin()));
  }
  for (size_t rank = 0; rank < group_of.size(); ++rank) {
    // What neighbours keep rises or falls from rank to rank: of a row of equal ones the first or the last has most.
    const bool inside = rank > 0 && rank + 1 < group_of.size() && group_of[rank - 1] == group_of[rank] && group_of[rank + 1] == group_of[rank];
    if (inside) continue;
    Keeping(pipeline, shape.groups[group_of[rank]], static_cast<int>(rank), shorter).run(lists[rank], most[group_of[rank]]);
  }
  for (size_t i = 0; i < most.size(); ++i) shape.groups[i].moments = most[i].take();
  return shape;
}

}  // namespace lockstep::plan
