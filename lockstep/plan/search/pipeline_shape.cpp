#include "lockstep/plan/search/pipeline_shape.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
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
// what it computes again; and the gradients of a chunk, where they come with its first backward pass.
struct Weights {
  double held = 1, opened = 0.001;
};
constexpr Weights kWeights[] = {{0.25}, {0.5}, {1}, {2}, {4}, {16}, {0.5, 1000}, {2, 1000}, {16, 1000}};
using Weighed = std::array<double, std::size(kWeights)>;

Weighed weighed(const Moment& moment, const std::vector<ChunkLayers>& chunks) {
  Weighed sums{};
  for (size_t way = 0; way < sums.size(); ++way)
    for (size_t i = 0; i < chunks.size(); ++i) {
      const double layers = std::accumulate(chunks[i].layers.begin(), chunks[i].layers.end(), 0);
      sums[way] += layers * (moment.saved[i] + kWeights[way].held * moment.held[i] + kWeights[way].opened * moment.opened[i]);
    }
  return sums;
}

// Keeps for each kind of work and chunk the moments at which most is there, weighed each way.
class MostMoments {
 public:
  MostMoments(const std::vector<ChunkLayers>& chunks, std::vector<Moment>& moments) : chunks_(chunks), moments_(moments) {}

  void add(const Moment& one) {
    const Weighed sums = weighed(one, chunks_);
    Weighed& most = most_[{one.work, one.chunk}];
    bool more = false;
    for (size_t way = 0; way < sums.size(); ++way) {
      more |= sums[way] > most[way];
      most[way] = std::max(most[way], sums[way]);
    }
    if (!more) return;
    std::erase_if(moments_, [&](const Moment& other) {
      if (other.work != one.work || other.chunk != one.chunk) return false;
      return std::ranges::equal(weighed(other, chunks_), most, [](double sum, double largest) { return sum < largest; });
    });
    moments_.push_back(one);
  }

 private:
  const std::vector<ChunkLayers> chunks_;
  std::vector<Moment>& moments_;
  std::map<std::pair<Work, int>, Weighed> most_;
};

// What a rank keeps while its list runs.
void add_moments(const std::vector<Action>& actions, const std::vector<int>& stages, int64_t microbatches, MostMoments& moments) {
  Moment now{.saved = std::vector<int>(stages.size()), .held = std::vector<int>(stages.size()), .opened = std::vector<char>(stages.size())};
  for (const Action& action : actions) {
    now.work = program::work_of(action.kind);
    now.chunk = static_cast<int>(std::ranges::find(stages, action.stage) - stages.begin());
    const auto chunk = static_cast<size_t>(now.chunk);
    if (now.work == Work::kForward) ++now.saved[chunk];
    moments.add(now);
    if (now.work == Work::kInput) ++now.held[chunk];
    if (now.work == Work::kInput || now.work == Work::kInputAndWeight) --now.saved[chunk];
    if (now.work == Work::kWeight) --now.held[chunk];
    // Behind the last microbatch they are reduced.
    if (now.work == Work::kWeight || now.work == Work::kInputAndWeight) now.opened[chunk] = action.microbatch + 1 < microbatches ? 1 : 0;
  }
}

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

int64_t microbatches_that_matter(const ShapeInput& input) {
  if (input.schedule == config::ScheduleKind::kGPipe) return input.microbatches;
  return std::min(input.microbatches, int64_t{4} * input.ranks);
}

PipelineShape pipeline_shape(const std::vector<int>& first_layer, const Places& places, const ShapeInput& input) {
  const program::Pipeline pipeline{.kind = input.schedule, .ranks = input.ranks, .virtual_stages = input.virtual_stages, .first_layer = first_layer};
  const int64_t microbatches = microbatches_that_matter(input);
  const auto lists = program::make_schedule({.kind = input.schedule, .ranks = input.ranks, .virtual_stages = input.virtual_stages,
                                             .microbatches = static_cast<int>(microbatches)});
  PipelineShape shape;
  std::vector<std::vector<Moment>> moments;  // by group
  std::vector<MostMoments> most;
  moments.reserve(static_cast<size_t>(input.ranks));  // `most` refers to them
  for (int rank = 0; rank < input.ranks; ++rank) {
    const std::vector<int> stages = pipeline.stages_of(rank);
    RankGroup group{.first = rank, .layers = std::vector<int>(static_cast<size_t>(places.count()))};
    for (const int stage : stages) {
      const auto at = static_cast<size_t>(stage);
      group.chunks.push_back(chunk_of(first_layer[at], first_layer[at + 1], places));
      for (size_t place = 0; place < group.layers.size(); ++place) group.layers[place] += group.chunks.back().layers[place];
      group.embedding |= group.chunks.back().embedding;
      group.head |= group.chunks.back().head;
      group.before |= stage > 0 && pipeline.rank_of(stage - 1) != rank;
      group.behind |= stage + 1 < pipeline.stages() && pipeline.rank_of(stage + 1) != rank;
    }
    const auto alike = [&](const RankGroup& other) { return other.chunks == group.chunks && other.before == group.before && other.behind == group.behind; };
    auto found = std::ranges::find_if(shape.groups, alike);
    if (found == shape.groups.end()) {
      most.emplace_back(group.chunks, moments.emplace_back());
      found = shape.groups.insert(found, std::move(group));
    }
    ++found->ranks;
    add_moments(lists[static_cast<size_t>(rank)], stages, microbatches, most[static_cast<size_t>(found - shape.groups.begin())]);
  }
  for (size_t i = 0; i < moments.size(); ++i) shape.groups[i].moments = std::move(moments[i]);
  return shape;
}

}  // namespace lockstep::plan
