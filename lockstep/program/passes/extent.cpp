#include "lockstep/program/passes/make_layout.h"

#include <algorithm>

#include "lockstep/base/checked.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/suggestion.h"

namespace lockstep::program {
namespace {

using config::LayoutProblem;
using config::RunConfig;
using config::Suggestion;

// Larger microbatches that divide the batch of a rank; or a smaller batch.
std::vector<Suggestion> fewer_microbatches(const RunConfig& config, int world_size, int64_t microbatches, int64_t actions) {
  const int64_t most = kMostActions / std::max<int64_t>(1, actions / microbatches);
  const int64_t dp = config::data_parallel_size(config, world_size), of_rank = config.train.global_batch / dp;
  const int64_t least = of_rank / std::max<int64_t>(1, most);
  std::vector<Suggestion> ways = config::divisors_near("train.micro_batch", of_rank, least);
  std::erase_if(ways, [&](const Suggestion& way) { return std::stoll(*way.changes[0].value) < least; });
  const int64_t unit = config::batch_unit(config, world_size), batch = most * dp * config.train.micro_batch / unit * unit;
  if (batch > 0) ways.push_back({.changes = {{"train.global_batch", cat(batch)}}});
  return ways;
}

// More than any sum of bytes that is made of a rank: each of its parameters and activations is counted a few times a
// microbatch. A double holds it whatever the sizes are.
double bytes_of(const RunConfig& config, const arch::ModelConfig& model, int world_size, double microbatches) {
  const auto number = [](int64_t size) { return static_cast<double>(size); };
  const double hidden = number(model.hidden), heads = number(model.heads + 2 * model.kv_heads);
  const double width = 24 * hidden + 8 * heads * (number(model.head_size) + 1) + 8 * number(model.ffn);
  const double layers = number(model.layers) + 2, vocabulary = number(model.vocab_size);
  const double tokens = number(config.train.micro_batch) * (number(config.train.seq_len) + 48);
  const double scratch = number(std::max(1, config.train.threads)) * 64 * (number(config.train.seq_len) + 500) *
                         (number(model.head_size) + 64);
  const double parameters = layers * hidden * (heads * number(model.head_size) + hidden + 3 * number(model.ffn) + 16) +
                            hidden * (2 * vocabulary + number(model.max_seq_len));
  const double logits = 1024 * vocabulary;
  const bool server = config.parallel.data_parallel == config::DataParallel::kParameterServer;  // sends to all ranks
  return (server ? world_size : 1) * 16 * (microbatches + 2) * (4 * parameters + layers * (8 * tokens * width + scratch) + logits);
}

Suggestion named_blocks(int64_t stages, int64_t layers) {
  const std::string blocks = config::blocks_text(config::even_blocks(stages, layers));
  return {.changes = {{"parallel.layers_per_stage", blocks}},
          .text = cat("name the blocks of every stage: layers_per_stage = ", blocks)};
}

// Sizes that a rank's bytes are products of, each by itself as small as it must be.
std::vector<Suggestion> fewer_bytes(const RunConfig& config, const arch::ModelConfig& model, int world_size, double bytes) {
  const auto share = [&](int64_t size) { return static_cast<int64_t>(static_cast<double>(size) / (bytes / kMostBytes)); };
  const config::TrainSection& train = config.train;
  return config::powers_below("train.seq_len", std::max<int64_t>(1, share(train.seq_len))) +
         config::powers_below("train.micro_batch", std::max<int64_t>(1, share(train.micro_batch))) +
         config::powers_below("train.global_batch", train.global_batch, config::batch_unit(config, world_size)) +
         config::powers_below("model.layers", std::max<int64_t>(1, share(model.layers)));
}

}  // namespace

int64_t actions_of(const RunConfig& config, const arch::ModelConfig& model, int world_size) {
  return saturating_mul(config::microbatches(config, world_size), 2 * (model.layers + 2));
}

std::vector<LayoutProblem> extent_problems(const RunConfig& config, const arch::ModelConfig& model, int world_size) {
  std::vector<LayoutProblem> problems;
  const int64_t microbatches = config::microbatches(config, world_size), pp = config.parallel.pp;
  const int64_t actions = actions_of(config, model, world_size);
  if (actions > kMostActions)
    problems.push_back({.key = "train.global_batch",
                        .what = cat("F and B of ", model.layers + 2, " layers x ", microbatches, " microbatches = ",
                                    size_text(actions), " actions, more than ", kMostActions),
                        .ways = fewer_microbatches(config, world_size, microbatches, actions)});
  const int64_t stages = pp * config::pipeline_choice(config).virtual_stages, layers = model.layers + 2;
  const int64_t cuts = saturating_mul(stages, saturating_mul(layers, layers)) / 2;
  if (pp > 1 && config.parallel.layers_per_stage.list.empty() && cuts > kMostCuts)
    problems.push_back({.key = "parallel.layers_per_stage",
                        .what = cat("to balance ", layers, " layers over ", stages, " stages is to compare ", size_text(cuts),
                                    " cuts, more than ", kMostCuts),
                        .ways = {named_blocks(stages, model.layers)}});
  const double bytes = bytes_of(config, model, world_size, static_cast<double>(microbatches));
  if (bytes > kMostBytes)
    problems.push_back({.key = "train.micro_batch",
                        .what = cat("parameters and activations of ", microbatches, " microbatches x micro_batch(",
                                    config.train.micro_batch, ") x seq_len(", config.train.seq_len, ") come to about ", bytes,
                                    " bytes, more than 64 bits count"),
                        .ways = fewer_bytes(config, model, world_size, bytes)});
  return problems;
}

}  // namespace lockstep::program
