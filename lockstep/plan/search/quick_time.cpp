#include "lockstep/plan/search/quick_time.h"

#include <algorithm>
#include <cmath>

#include "lockstep/plan/search/candidate.h"

namespace lockstep::plan {
namespace {

using config::ScheduleKind;

// Of a rank's share of the bubble: F + I + so many W, over the stages of a rank where these fill in turn.
struct Fill {
  double weight = 1;
  double stages = 1;
  double empty = 0;  // share of a V-shaped pipeline that too few microbatches leave empty: its forms hold from 2 p on
};
Fill fill_of(const Candidate& candidate, double microbatches) {
  const double empty = std::max(0.0, 1 - microbatches / (2 * candidate.pp));
  switch (candidate.schedule) {
    case ScheduleKind::kInterleaved:
      return {.stages = static_cast<double>(candidate.virtual_stages)};
    case ScheduleKind::kZbH1:
      return {.weight = -1};
    case ScheduleKind::kZbH2:
      return {.weight = -2};
    case ScheduleKind::kZbV:
      return {.weight = -2, .stages = 2, .empty = empty};
    case ScheduleKind::kDualPipeV:
      return {.weight = -1, .stages = 2, .empty = empty};
    case ScheduleKind::kNaive:
    case ScheduleKind::kGPipe:
    case ScheduleKind::kOneFOneB:
    case ScheduleKind::kFile:
      break;
  }
  return {};
}

double fill_seconds(const LayerTimes& rank, const Fill& fill) {
  const double formed = std::max(0.0, rank.forward + rank.recompute + rank.input + fill.weight * rank.weight);
  return std::max(formed, fill.empty * rank.all()) / fill.stages;
}

// What a pass of `seconds` takes while `travels` go on beside it: the longer of the two, and what each loses by the other.
double beside(double seconds, double travels, double exposed) { return std::max(seconds, travels) + exposed * std::min(seconds, travels); }

// Gradients are reduced, or go to the host, behind each microbatch.
bool by_microbatch(const Candidate& candidate) {
  return candidate.pp == 1 && ((candidate.zero >= 2) || (candidate.zero == 1 && candidate.offload_optimizer));
}

// Seconds of `travels` that a window does not hide.
double left_over(double travels, double window, double exposed) { return exposed * travels + std::max(0.0, (1 - exposed) * travels - window); }

}  // namespace

// pipeline_seconds() where all stages take the same; where they do not, the worst takes more than that. Weight gradients that fill the bubble may
// leave none of it.
double least_fill(const Candidate& candidate, double microbatches) {
  const Fill fill = fill_of(candidate, microbatches);
  return fill.weight < 0 ? 1 : 1 + (candidate.pp - 1) / (fill.stages * microbatches);
}

double straggle_factor(const Job& job, int64_t ranks) {
  const double nodes = std::ceil(static_cast<double>(ranks) / job.cluster.devices_per_node);
  return 1 + job.stack.straggle * std::log2(std::max(1.0, nodes));
}

void TimeForm::make_places(const TimeInput& input) {
  const Candidate& candidate = input.candidate;
  const auto choice = static_cast<size_t>(candidate.recompute);
  const double exposed = job_.stack.shard_exposed;
  const bool gathers = candidate.zero == 3, reduces = by_microbatch(candidate);
  const bool weights_apart = candidate.schedule == ScheduleKind::kZbH1 || candidate.schedule == ScheduleKind::kZbH2 || candidate.schedule == ScheduleKind::kZbV;
  places_.clear();
  for (size_t place = 0; place < input.layers.times.size(); ++place) {
    LayerTimes& times = places_.emplace_back(input.layers.times[place][choice]);
    const double least = input.layers.least[place];
    times.input = std::max(times.input, weights_apart ? least : 2 * least - times.weight);
    if (weights_apart) times.weight = std::max(times.weight, least);
    if (!gathers && !reduces) continue;
    const DataTimes::OfPlace& data = input.data.places[place];
    const double gather = gathers ? data.gather_unit : 0, reduce = reduces ? data.reduce_unit : 0;
    times.forward = beside(times.forward, gather, exposed);
    const bool again = times.recompute > 0;
    const double back = times.input + (weights_apart ? 0 : times.weight);
    // A layer is gathered one action ahead, and reduced within the next one: where that recomputes there is little beside it.
    times.input += beside(back, again ? gather : gather + reduce, exposed) - back;
    if (again) times.recompute = beside(times.recompute, reduce, exposed);
  }
}

LayerTimes TimeForm::of_group(const RankGroup& group) const {
  LayerTimes sum;
  for (size_t place = 0; place < places_.size(); ++place) {
    const double layers = group.layers[place];
    sum.forward += layers * places_[place].forward;
    sum.input += layers * places_[place].input;
    sum.weight += layers * places_[place].weight;
    sum.recompute += layers * places_[place].recompute;
  }
  return sum;
}

double TimeForm::pipeline_seconds(const TimeInput& input) {
  const Candidate& candidate = input.candidate;
  const double microbatches = input.microbatches;
  const Fill fill = fill_of(candidate, microbatches);
  LayerTimes worst;
  double fills = 0, fill_of_worst = 0, pass = 0, widest = 0;
  for (const RankGroup& group : input.shape.groups) {
    const LayerTimes rank = of_group(group);
    const double of_rank = fill_seconds(rank, fill), back = rank.forward + rank.recompute + rank.input;
    fills += group.ranks * of_rank;
    pass += group.ranks * back;
    widest = std::max(widest, back);
    if (rank.all() >= worst.all()) worst = rank, fill_of_worst = of_rank;
  }
  if (candidate.schedule == ScheduleKind::kNaive) return microbatches * (pass + worst.weight * candidate.pp);
  const double formed = microbatches * worst.all() + fills - fill_of_worst;
  // With few microbatches the first one on its way through all stages and back, and the others behind it.
  const double passing = pass + (microbatches - 1) * (fill.weight < 0 ? widest / fill.stages : 0) + worst.weight;
  if (candidate.pp == 1) return formed;
  const double send = input.data.send_latency + input.layers.bytes[1][0].output * input.data.send_per_byte;
  const double sends = 2 * send * (candidate.pp - 1 + job_.stack.send_exposed * microbatches * candidate.virtual_stages);
  return std::max(formed, passing) + sends + input.data.tied;
}

// The first rank's gradients are the last to be whole, and it is the first to need its parameters again.
double TimeForm::data_seconds(const TimeInput& input) const {
  const Candidate& candidate = input.candidate;
  const RankGroup& first = input.shape.groups.front();
  double reduced = 0, gathered = 0, largest = 0, copies = 0;
  for (size_t place = 0; place < places_.size(); ++place) {
    const DataTimes::OfPlace& data = input.data.places[place];
    if (first.layers[place] == 0) continue;
    const double reduce = candidate.zero == 0 ? data.all_reduce : candidate.zero == 1 ? data.reduce_scatter : data.reduce_unit;
    reduced += first.layers[place] * reduce;
    gathered += first.layers[place] * data.gather_unit;
    copies += candidate.zero > 0 ? first.layers[place] * data.copies : 0;
    largest = std::max(largest, reduce + data.gather_unit);
  }
  const LayerTimes rank = of_group(first);
  const double exposed = job_.stack.data_exposed, back = rank.recompute + rank.input + rank.weight;
  const bool each = by_microbatch(candidate);
  if (!job_.config.parallel.overlap) return (each ? input.microbatches : 1) * reduced + copies + (candidate.zero == 1 || candidate.zero == 2 ? gathered : 0);
  double seconds = left_over((each ? 0 : reduced) + copies, back, exposed);
  if (candidate.zero == 1 || candidate.zero == 2) seconds += left_over(gathered, rank.forward, exposed);
  if (candidate.zero >= 2) seconds += largest;  // the first to be gathered and the last to be reduced are beside nothing
  return seconds;
}

double TimeForm::update_seconds(const TimeInput& input) const {
  const Candidate& candidate = input.candidate;
  const DeviceKind& device = job_.cluster.device;
  double most = 0;
  for (const RankGroup& group : input.shape.groups) {
    double part = 0, moved = 0;
    for (size_t place = 0; place < input.units.size(); ++place)
      for (size_t index = 0; index < input.shards.size(); ++index) {
        const UnitSize& unit = input.units[place][index];
        const double elements = group.layers[place] * unit.elements / input.shards[index];
        part += elements;
        const double sums = candidate.pp == 1 ? input.microbatches : 1;  // fp32, each added to what is there; in a pipeline of all microbatches
        moved += elements * (4 * sums + unit.element_size);
      }
    const double there = (device.pcie > 0 ? moved / device.pcie : 0) + part * job_.stack.optimizer_bytes * job_.cluster.devices_per_node / job_.times.host_bandwidth;
    const double here = part * job_.stack.optimizer_bytes / (device.memory_bandwidth * job_.stack.memory_share);
    most = std::max(most, candidate.offload_optimizer ? there : here);
  }
  return most;
}

double TimeForm::of(const TimeInput& input, double enough) {
  make_places(input);
  const double straggle = straggle_factor(job_, ranks_of(input.candidate)), pipeline = pipeline_seconds(input);
  if (pipeline * straggle >= enough) return pipeline * straggle;
  return (pipeline + data_seconds(input) + update_seconds(input)) * straggle;
}

}  // namespace lockstep::plan
