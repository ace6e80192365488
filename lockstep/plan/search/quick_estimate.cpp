#include "lockstep/plan/search/quick_estimate.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/plan/search/candidate.h"

namespace lockstep::plan {

using arch::ParameterGroup;

QuickTier::QuickTier(const Job& job, const EstimateOptions& options, const Candidate& legal)
    : stack_(job.stack),
      job_{.config = job.config, .model = job.model, .cluster = job.cluster, .stack = stack_, .times = job.times},
      options_(options),
      legality_(job.config, job.model),
      pieces_(job_, options, legal),
      memory_(job.config, job.model),
      time_(job_) {}

void QuickTier::change_stack(const Stack& stack) {
  stack_ = stack;
  pieces_.forget_times();
  data_.clear();
}

LayerSet& QuickTier::layers_of(const Candidate& candidate) {
  pieces_.timed(candidate);
  return pieces_.with_bytes(candidate);
}

int QuickTier::cut_of(int profile, int stages) {
  return cut_of_.of({profile, stages}, [&] {
    const std::vector<double>& of_place = pieces_.profile(profile);
    std::vector<double> costs;
    for (int layer = 0; layer < pieces_.places().layers(); ++layer) costs.push_back(of_place[static_cast<size_t>(pieces_.places().of(layer))]);
    std::vector<int> cut = balanced_cut(costs, stages);
    const auto known = std::ranges::find(cuts_, cut);
    const auto index = static_cast<int>(known - cuts_.begin());
    if (known == cuts_.end()) cuts_.push_back(std::move(cut));
    return index;
  });
}

const PipelineShape& QuickTier::shape_of_candidate(const Candidate& candidate, const LayerSet& layers) {
  const ShapeInput input{.schedule = candidate.schedule, .ranks = candidate.pp, .virtual_stages = candidate.virtual_stages,
                         .microbatches = legality_.microbatches(candidate), .shards_parameters = candidate.zero == 3,
                         .receives_early = job_.config.parallel.overlap};
  const int cut = cut_of(layers.profile, input.ranks * input.virtual_stages), matter = static_cast<int>(microbatches_that_matter(input));
  return shapes_.of({cut, static_cast<int>(input.schedule), input.ranks, input.virtual_stages, matter, input.shards_parameters ? 1 : 0},
                    [&] { return pipeline_shape(cuts_[static_cast<size_t>(cut)], pieces_.places(), input); });
}

const DataTimes& QuickTier::data_of(const Candidate& candidate) {
  const LookupKey key = {candidate.tp, candidate.cp, candidate.dp, candidate.pp, candidate.ep, candidate.etp, candidate.sequence_parallel ? 1 : 0,
                         candidate.zero > 0 ? candidate.dp_replicate : 1};
  return data_.of(key, [&] { return data_times(job_, options_, pieces_, candidate); });
}

// As Layout::shards() has them.
GroupShards QuickTier::shards_of(const Candidate& candidate) const {
  GroupShards shards{};
  const double dense = candidate.zero > 0 ? static_cast<double>(candidate.dp_shard()) * candidate.cp : 1;
  const bool server = job_.config.parallel.data_parallel == config::DataParallel::kParameterServer;
  const bool rows = job_.config.parallel.row_groups && !server && candidate.tp > 1;
  const bool folded = candidate.ep != 1 || candidate.etp != candidate.tp;
  const double with_rows = dense > 1 ? dense * candidate.tp : 1;
  shards[static_cast<size_t>(ParameterGroup::kDense)] = dense;
  shards[static_cast<size_t>(ParameterGroup::kRows)] = with_rows;
  shards[static_cast<size_t>(ParameterGroup::kFp32)] = rows ? with_rows : dense;
  const int64_t copies = ranks_of_stage(candidate) / (int64_t{candidate.ep} * candidate.etp);
  const int64_t groups = std::gcd(int64_t{candidate.dp_replicate}, copies);
  shards[static_cast<size_t>(ParameterGroup::kExperts)] = !folded ? dense : candidate.zero > 0 ? static_cast<double>(copies / groups) : 1;
  return shards;
}

double QuickTier::seconds(const Candidate& candidate, double enough) {
  const LayerSet& layers = layers_of(candidate);
  return time_.of({.candidate = candidate, .layers = layers, .units = pieces_.units(candidate), .shape = shape_of_candidate(candidate, layers),
                   .data = data_of(candidate), .shards = shards_of(candidate), .microbatches = static_cast<double>(legality_.microbatches(candidate))},
                  enough);
}

QuickMemory QuickTier::memory(const Candidate& candidate, double enough) {
  const LayerSet& layers = pieces_.with_bytes(candidate);
  return memory_.of({.candidate = candidate, .layers = layers, .units = pieces_.units(candidate), .shape = shape_of_candidate(candidate, layers),
                     .shards = shards_of(candidate), .microbatches = static_cast<double>(legality_.microbatches(candidate)),
                     .post_validates = legality_.post_validates(candidate)},
                    (enough - stack_.reserved) / (1 + stack_.fragmentation));
}

QuickEstimate QuickTier::estimate(const Candidate& candidate) {
  return {.seconds = seconds(candidate), .memory = reserved(memory(candidate).device)};
}

double QuickTier::least_seconds(const Candidate& candidate) {
  const LayerSet& layers = pieces_.timed(candidate);
  return of_all_layers(candidate, [&](size_t place) {
    const LayerTimes& times = layers.times[place][0];
    return times.forward + std::max(times.input + times.weight, 2 * layers.least[place]);
  });
}

double QuickTier::least_of_order(const Candidate& candidate) {
  const LayerSet& layers = pieces_.timed(candidate);
  const auto choice = static_cast<size_t>(candidate.recompute);
  return least_fill(candidate, static_cast<double>(legality_.microbatches(candidate))) * of_all_layers(candidate, [&](size_t place) {
           const LayerTimes& times = layers.times[place][choice];
           return times.forward + times.recompute + std::max(times.input + times.weight, 2 * layers.least[place]);
         });
}

double QuickTier::least_of_grids(const Candidate& candidate) {
  if (!job_.model.has_experts()) return least_seconds(candidate);
  Candidate one = candidate;
  one.ep = one.etp = 1;
  const LayerSet& layers = pieces_.timed(one);
  return of_all_layers(candidate, [&](size_t place) { return layers.certain[place]; });
}

// As if the layers lay on the stages in equal parts, and nothing waited.
template <typename Of>
double QuickTier::of_all_layers(const Candidate& candidate, const Of& seconds) const {
  double all = 0;
  for (int place = 0; place < pieces_.places().count(); ++place) all += pieces_.places().times(place) * seconds(static_cast<size_t>(place));
  return static_cast<double>(legality_.microbatches(candidate)) * all / candidate.pp * straggle_factor(job_, ranks_of(candidate));
}

}  // namespace lockstep::plan
