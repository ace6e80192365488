#include "lockstep/program/passes/job.h"

#include <algorithm>
#include <map>
#include <memory>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/model_findings.h"
#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/fields.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/data/sampler.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/placement.h"

namespace lockstep::program {
namespace {

using config::TrainSection;

bool is_default(const config::LoadedConfig& loaded, const char* key) {
  const auto found = loaded.origin.find(key);
  return found != loaded.origin.end() && found->second.starts_with("default");
}

void settle(config::LoadedConfig& loaded, const char* key, int64_t& field, int64_t value, int64_t plain, const char* why) {
  field = value;
  loaded.origin[key] = value == plain ? "default" : why;
}

void settle_micro_batch(config::LoadedConfig& loaded, int64_t data_ranks) {
  TrainSection& train = loaded.config.train;
  const int64_t plain = TrainSection{}.micro_batch, parts = saturating_mul(data_ranks, config::microbatch_group(loaded.config));
  if (train.global_batch % parts != 0) return settle(loaded, "train.micro_batch", train.micro_batch, plain, plain, "");
  int64_t size = plain;
  while (train.global_batch / parts % size != 0) --size;
  settle(loaded, "train.micro_batch", train.micro_batch, size, plain, "default: at most 8");
}

void settle_global_batch(config::LoadedConfig& loaded, int world_size) {
  TrainSection& train = loaded.config.train;
  const int64_t plain = TrainSection{}.global_batch, unit = config::batch_unit(loaded.config, world_size);
  const bool fits = unit < config::kSizesBelow - plain;  // else the layout is refused
  const int64_t next = fits ? (plain + unit - 1) / unit * unit : plain;
  settle(loaded, "train.global_batch", train.global_batch, next, plain, "default: 32 or the next that fits");
}

config::LayoutProblem too_long(const config::RunConfig& config, const arch::ModelConfig& model) {
  const bool learned = model.traits().learned_positions && !config.model.from.empty();
  const std::string now = cat(config.train.seq_len), most = cat(model.max_seq_len);
  config::LayoutProblem problem{.key = "train.seq_len",
                                .what = cat("train.seq_len = ", now, " is longer than model.max_seq_len = ", most),
                                .ways = {{.changes = {{"train.seq_len", most}},
                                          .text = cat("use seq_len <= ", most, learned ? "; the model has learned so many positions" : "")}}};
  if (!learned) problem.ways.push_back({.changes = {{"model.max_seq_len", now}}, .text = "raise model.max_seq_len"});
  return problem;
}

config::LayoutProblem too_many_tokens(const config::RunConfig& config, int64_t tokens, const arch::ModelConfig& model) {
  config::LayoutProblem problem{.key = "model.vocab_size",
                                .what = cat("the tokenizer ", config.data.tokenizer, " has ", tokens,
                                            " tokens, but model.vocab_size = ", model.vocab_size)};
  const std::string& from = config.model.from;
  if (!from.empty()) {
    problem.ways = {{.changes = {{"data.tokenizer", from}}, .text = cat("use the tokenizer that came with ", from)}};
    problem.elsewhere = cat("name a tokenizer with at most ", model.vocab_size, " tokens");
    return problem;
  }
  problem.ways = {{.changes = {{"model.vocab_size", cat(tokens)}}, .text = cat("set model.vocab_size = ", tokens)}};
  if (config.model.vocab_size) problem.ways.push_back({.changes = {{.key = "model.vocab_size"}}, .text = "leave it out"});
  return problem;
}

// The sizes of the vocabularies that a job and its changes name, each read once.
using Vocabularies = std::map<std::string, int64_t>;

// 0 where no tokenizer is named. DataError as Tokenizer::load.
int64_t vocabulary_size(const std::string& tokenizer, Vocabularies& read) {
  if (tokenizer.empty()) return 0;
  if (const auto known = read.find(tokenizer); known != read.end()) return known->second;
  return read[tokenizer] = data::Tokenizer::load(tokenizer).vocab_size();
}

// In the order in which a job is judged: what is wrong at one step hides the next ones.
enum class Step { kModel, kLayout, kVocabulary, kTokenizer, kSequence, kWhole, kHost, kFiles };

// What is wrong with a job, all found at one step; what a refusal has in common has one code.
using Findings = arch::ModelFindings;

Findings at(Step step, Findings found) {
  for (config::LayoutProblem& problem : found.problems) problem.depth += kDepthsOfLayout * static_cast<int>(step);
  return found;
}

Findings of_layout(Step step, std::vector<config::LayoutProblem> problems) {
  if (problems.empty()) return {};
  std::string heading = config::layout_heading(problems.size());
  return at(step, {.code = config::kLayoutCode, .heading = std::move(heading), .problems = std::move(problems)});
}

// Everything that can be said before a file of tokens or a tokenizer is opened: the model with every size but that of the
// vocabulary, and with room for the sequence, for what is wrong with that is said by itself. The ways out of a model are not
// asked for where a change is tried.
Findings judge_sizes(config::LoadedConfig& loaded, int world_size, bool with_ways) {
  const config::RunConfig& config = loaded.config;
  Findings sizes = arch::judge_model(config.model, 1, config.moe, with_ways);
  if (!sizes.model) return at(Step::kModel, sizes);
  settle_defaults(loaded, *sizes.model, world_size);
  config::read_schedule(loaded.config);
  sizes.model->max_seq_len = config.model.max_seq_len.value_or(config.train.seq_len);
  return of_layout(Step::kLayout, layout_problems(config, *sizes.model, world_size));
}

// Everything at once of layout and schedule, then the vocabulary, then the length of a sequence, then what the host takes.
Findings judge(config::LoadedConfig& loaded, int world_size, Vocabularies& vocabularies, bool with_ways) {
  const config::RunConfig& config = loaded.config;
  if (Findings sizes = judge_sizes(loaded, world_size, with_ways); !sizes.problems.empty()) return sizes;
  const int64_t tokens = vocabulary_size(config.data.tokenizer, vocabularies);
  const Findings found = arch::judge_model(config.model, tokens, config.moe, with_ways);
  if (!found.model) return at(Step::kVocabulary, found);
  const arch::ModelConfig& model = *found.model;
  if (tokens > model.vocab_size)
    return at(Step::kTokenizer, {.code = "LS1120", .problems = {too_many_tokens(config, tokens, model)}});
  if (config.train.seq_len > model.max_seq_len) return at(Step::kSequence, {.code = "LS1121", .problems = {too_long(config, model)}});
  if (Findings whole = of_layout(Step::kWhole, layout_problems(config, model, world_size)); !whole.problems.empty()) return whole;
  if (config.memory.host_limit.count > 0)
    if (const auto problem = host_limit_problem(make_layout(loaded, model, world_size)))
      return at(Step::kHost, {.code = kHostLimitCode, .problems = {*problem}});
  return {.model = model};
}

// A file that cannot be read, whatever is changed beside it, keeps a change from being judged to its end.
bool same_files(const config::RunConfig& a, const config::RunConfig& b) {
  return a.data.tokenizer == b.data.tokenizer && a.model.from == b.model.from;
}

// With the ways out that hold.
[[noreturn]] void refuse(Findings found, const config::LoadedConfig& loaded, int world_size, const config::Rules& rules) {
  keep_what_holds(found.problems, {.loaded = loaded, .world_size = world_size}, rules);
  config::refuse(loaded, found.code, found.heading, found.problems);
}

void check_tokens(const std::string& prefix, const Layout& layout, const data::SamplerOptions& options) {
  const auto tokens = std::make_shared<const data::TokenFile>(prefix);
  const data::Sampler sampler(tokens, options);
  tokens->require_ids_below(layout.model.vocab_size);
}

}  // namespace

void settle_defaults(config::LoadedConfig& loaded, const arch::ModelConfig& model, int world_size) {
  TrainSection& train = loaded.config.train;
  if (is_default(loaded, "train.seq_len")) {
    const int64_t plain = TrainSection{}.seq_len;
    settle(loaded, "train.seq_len", train.seq_len, std::min(plain, model.max_seq_len), plain, "default: what the model can read");
  }
  const bool batch_is_free = is_default(loaded, "train.global_batch");
  if (is_default(loaded, "train.micro_batch")) {
    if (batch_is_free) train.micro_batch = TrainSection{}.micro_batch;
    else settle_micro_batch(loaded, config::data_parallel_size(loaded.config, world_size));
  }
  if (batch_is_free) settle_global_batch(loaded, world_size);
}

Layout layout_of(config::LoadedConfig& loaded, int world_size) {
  Vocabularies vocabularies;
  const Findings found = judge(loaded, world_size, vocabularies, true);
  if (found.problems.empty()) return make_layout(loaded, found.model.value(), world_size);
  const config::Rules rules = [&](const config::Trial& trial) {
    config::LoadedConfig changed = trial.loaded;
    try {
      return judge(changed, trial.world_size, vocabularies, false).problems;
    } catch (const DataError& error) {
      if (!same_files(changed.config, loaded.config)) throw;
      return at(Step::kFiles, {.problems = {{.key = "", .what = error.what()}}}).problems;
    }
  };
  refuse(found, loaded, world_size, rules);
}

void check_sizes(config::LoadedConfig& loaded, int world_size) {
  const Findings found = judge_sizes(loaded, world_size, true);
  if (found.problems.empty()) return;
  refuse(found, loaded, world_size, [](const config::Trial& trial) {
    config::LoadedConfig changed = trial.loaded;
    return judge_sizes(changed, trial.world_size, false).problems;
  });
}

void check_data(const config::RunConfig& config, const Layout& layout) {
  if (config.data.train.empty())
    throw ConfigError({.code = "LS1082",
                       .what = "data.train is not given",
                       .way_out = "name the prefix of a .bin/.idx pair; `lockstep data prepare` makes one"});
  check_tokens(config.data.train, layout, data::training_samples(config, layout.seq_len, layout.global_batch));
  if (!config.data.validation.empty()) check_tokens(config.data.validation, layout, data::validation_samples(config, layout.seq_len));
}

}  // namespace lockstep::program
