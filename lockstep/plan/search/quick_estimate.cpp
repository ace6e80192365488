#include "lockstep/plan/search/quick_estimate.h"

#include "lockstep/plan/search/candidate.h"

namespace lockstep::plan {

using arch::ParameterGroup;

QuickTier::QuickTier(const Job& job, const EstimateOptions& options, const Candidate& legal)
    : job_(job), options_(options), legality_(job.config, job.model), pieces_(job, options, legal), memory_(job.config, job.model), time_(job) {}

LayerSet& QuickTier::layers_of(const Candidate& candidate) {
  pieces_.timed(candidate);
  return pieces_.with_bytes(candidate);
}

const PipelineShape& QuickTier::shape_of_candidate(const Candidate& candidate, const LayerSet& layers) {
  const ShapeInput input{.schedule = candidate.schedule, .ranks = candidate.pp, .virtual_stages = candidate.virtual_stages,
                         .microbatches = legality_.microbatches(candidate)};
  const auto matter = static_cast<int>(microbatches_that_matter(input));
  return shapes_.of({layers.profile, static_cast<int>(input.schedule), input.ranks, input.virtual_stages, matter}, [&] {
    const int stages = input.ranks * input.virtual_stages;
    const CutShapes& cut = cuts_.of({layers.profile, stages}, [&] {
      std::vector<double> costs;
      const std::vector<double>& profile = pieces_.profile(layers.profile);
      for (int layer = 0; layer < pieces_.places().layers(); ++layer) costs.push_back(profile[static_cast<size_t>(pieces_.places().of(layer))]);
      return CutShapes{.first_layer = balanced_cut(costs, stages)};
    });
    return pipeline_shape(cut.first_layer, pieces_.places(), input);
  });
}

const DataTimes& QuickTier::data_of(const Candidate& candidate) {
  const LookupKey key = {candidate.tp, candidate.cp, candidate.dp, candidate.pp, candidate.ep, candidate.etp, candidate.sequence_parallel ? 1 : 0};
  return data_.of(key, [&] { return data_times(job_, options_, pieces_, candidate); });
}

// As Layout::shards() has them, with all data ranks as one group that shares out states.
GroupShards QuickTier::shards_of(const Candidate& candidate) const {
  GroupShards shards{};
  const double dense = candidate.zero > 0 ? static_cast<double>(candidate.dp) * candidate.cp : 1;
  const bool server = job_.config.parallel.data_parallel == config::DataParallel::kParameterServer;
  const bool rows = job_.config.parallel.row_groups && !server && candidate.tp > 1;
  const bool folded = candidate.ep != 1 || candidate.etp != candidate.tp;
  const double with_rows = dense > 1 ? dense * candidate.tp : 1;
  shards[static_cast<size_t>(ParameterGroup::kDense)] = dense;
  shards[static_cast<size_t>(ParameterGroup::kRows)] = with_rows;
  shards[static_cast<size_t>(ParameterGroup::kFp32)] = rows ? with_rows : dense;
  const double copies = static_cast<double>(ranks_of_stage(candidate)) / (static_cast<double>(candidate.ep) * candidate.etp);
  shards[static_cast<size_t>(ParameterGroup::kExperts)] = !folded ? dense : candidate.zero > 0 ? copies : 1;
  return shards;
}

double QuickTier::seconds(const Candidate& candidate) {
  const LayerSet& layers = layers_of(candidate);
  return time_.of({.candidate = candidate, .layers = layers, .units = pieces_.units(candidate), .shape = shape_of_candidate(candidate, layers),
                   .data = data_of(candidate), .shards = shards_of(candidate), .microbatches = static_cast<double>(legality_.microbatches(candidate))});
}

QuickMemory QuickTier::memory(const Candidate& candidate) {
  const LayerSet& layers = pieces_.with_bytes(candidate);
  return memory_.of({.candidate = candidate, .layers = layers, .units = pieces_.units(candidate), .shape = shape_of_candidate(candidate, layers),
                     .shards = shards_of(candidate), .microbatches = static_cast<double>(legality_.microbatches(candidate)),
                     .post_validates = legality_.post_validates(candidate)});
}

QuickEstimate QuickTier::estimate(const Candidate& candidate) {
  return {.seconds = seconds(candidate), .memory = reserved(memory(candidate).device)};
}

double QuickTier::least_seconds(const Candidate& candidate) {
  Candidate one = candidate;
  one.recompute = config::Recompute::kNone;
  const LayerSet& layers = pieces_.timed(one);
  double all = 0;
  for (int place = 0; place < pieces_.places().count(); ++place)
    all += pieces_.places().times(place) * layers.times[static_cast<size_t>(place)][0].all();
  return static_cast<double>(legality_.microbatches(candidate)) * all / candidate.pp * straggle_factor(job_, ranks_of(candidate));
}

}  // namespace lockstep::plan
