#include "lockstep/program/job.h"

#include <functional>
#include <memory>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/data/sampler.h"

namespace lockstep::program {
namespace {

std::string origin(const config::LoadedConfig& loaded, const std::string& key) {
  const auto found = loaded.origin.find(key);
  return found == loaded.origin.end() ? "" : found->second;
}

config::LayoutProblem too_long(const config::LoadedConfig& loaded, const arch::ModelConfig& model) {
  const bool window = model.sliding_window > 0 && model.max_seq_len == model.sliding_window;
  const bool learned = model.traits().learned_positions && !loaded.config.model.from.empty();
  const std::string now = cat(loaded.config.train.seq_len), most = cat(model.max_seq_len);
  config::LayoutProblem problem{.key = "train.seq_len",
                                .what = cat("train.seq_len = ", now, " is longer than model.max_seq_len = ", most,
                                            window ? ", which is the model's sliding window" : ""),
                                .way_out = {},
                                .ways = {{.changes = {{"train.seq_len", most}},
                                          .text = cat("use seq_len <= ", most,
                                                      window    ? "; windows shorter than a sequence are not built"
                                                      : learned ? "; the model has learned so many positions"
                                                                : "")}}};
  if (!window && !learned) problem.ways.push_back({.changes = {{"model.max_seq_len", now}}, .text = "raise model.max_seq_len"});
  return problem;
}

config::LayoutProblem too_many_tokens(const config::RunConfig& config, int64_t tokens, const arch::ModelConfig& model) {
  config::LayoutProblem problem{.key = "model.vocab_size",
                                .what = cat("the tokenizer ", config.data.tokenizer, " has ", tokens,
                                            " tokens, but model.vocab_size = ", model.vocab_size),
                                .way_out = cat("use the tokenizer that came with ", config.model.from)};
  if (!config.model.from.empty()) return problem;
  problem.ways = {{.changes = {{"model.vocab_size", cat(tokens)}}, .text = cat("set model.vocab_size = ", tokens)}};
  if (config.model.vocab_size) problem.ways.push_back({.changes = {{.key = "model.vocab_size"}}, .text = "leave it out"});
  return problem;
}

[[noreturn]] void refuse(const config::LoadedConfig& loaded, const char* code, const config::LayoutProblem& problem) {
  throw config::RefusedConfig(
      {.code = code, .what = problem.what, .where = origin(loaded, problem.key), .way_out = problem.way_out}, {problem});
}

// What is wrong with a job, in the order in which it is told; what a refusal has in common has one code.
struct Findings {
  const char* code = "LS1101";
  std::vector<config::LayoutProblem> problems{};
  std::optional<arch::ModelConfig> model{};  // where nothing is
};

// The model with every size but that of the vocabulary, and with room for the sequence: what is wrong with that is said by
// itself.
arch::ModelConfig sizes_of(const config::RunConfig& config) {
  arch::ModelConfig sizes = arch::resolve_model(config.model, 1);
  sizes.max_seq_len = config.model.max_seq_len.value_or(config.train.seq_len);
  return sizes;
}

// Everything at once of layout and schedule, then the vocabulary, then the length of a sequence. `tokens`: of the tokenizer,
// asked for when the first is sound.
Findings judge(config::LoadedConfig& loaded, int world_size, const std::function<int64_t()>& tokens_of) {
  settle_defaults(loaded, world_size);
  const config::RunConfig& config = loaded.config;
  Findings found{.problems = layout_problems(config, sizes_of(config), world_size)};
  if (!found.problems.empty()) return found;
  const int64_t tokens = tokens_of();
  const arch::ModelConfig model = arch::resolve_model(config.model, tokens);
  if (tokens > model.vocab_size) return {.code = "LS1120", .problems = {too_many_tokens(config, tokens, model)}};
  if (config.train.seq_len > model.max_seq_len) return {.code = "LS1121", .problems = {too_long(loaded, model)}};
  found.problems = layout_problems(config, model, world_size);
  found.model = model;
  return found;
}

void check_tokens(const std::string& prefix, const config::RunConfig& config, const Layout& layout, int64_t batch) {
  const auto tokens = std::make_shared<const data::TokenFile>(prefix);
  const data::Sampler sampler(tokens, {.seed = static_cast<uint64_t>(config.train.seed),
                                       .seq_len = layout.seq_len,
                                       .shuffle = config.data.shuffle,
                                       .global_batch = batch});
  tokens->require_ids_below(layout.model.vocab_size);
}

}  // namespace

Layout layout_of(config::LoadedConfig& loaded, int world_size) {
  std::optional<int64_t> tokens;
  const auto tokens_of = [&] {
    const std::string& file = loaded.config.data.tokenizer;
    if (!tokens) tokens = file.empty() ? 0 : data::Tokenizer::load(file).vocab_size();
    return *tokens;
  };
  Findings found = judge(loaded, world_size, tokens_of);
  if (found.problems.empty()) return make_layout(loaded, found.model.value(), world_size);
  const config::Rules rules = [&](const config::Trial& trial) {
    config::LoadedConfig changed = trial.loaded;
    return judge(changed, trial.world_size, [&] { return tokens.value_or(0); }).problems;
  };
  keep_what_holds(found.problems, {.loaded = loaded, .world_size = world_size}, rules);
  if (found.code != std::string_view("LS1101")) refuse(loaded, found.code, found.problems.front());
  config::refuse_layout(loaded, found.problems);
  throw InternalError("problems that are none");
}

void check_data(const config::RunConfig& config, const Layout& layout) {
  if (config.data.train.empty())
    throw ConfigError({.code = "LS1082",
                       .what = "data.train is not given",
                       .way_out = "name the prefix of a .bin/.idx pair; `lockstep data prepare` makes one"});
  check_tokens(config.data.train, config, layout, layout.global_batch);
  if (!config.data.validation.empty()) check_tokens(config.data.validation, config, layout, 1);
}

}  // namespace lockstep::program
