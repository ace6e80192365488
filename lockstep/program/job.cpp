#include "lockstep/program/job.h"

#include <memory>

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

ConfigError too_long(const config::LoadedConfig& loaded, const arch::ModelConfig& model) {
  const bool window = model.sliding_window > 0 && model.max_seq_len == model.sliding_window;
  const std::string raise = window ? "; windows shorter than a sequence are not built"
                            : model.traits().learned_positions && !loaded.config.model.from.empty()
                                ? "; the model has learned so many positions"
                                : " or raise model.max_seq_len";
  return ConfigError({.code = "LS1121",
                      .what = cat("train.seq_len = ", loaded.config.train.seq_len, " is longer than model.max_seq_len = ",
                                  model.max_seq_len, window ? ", which is the model's sliding window" : ""),
                      .where = origin(loaded, "train.seq_len"),
                      .way_out = cat("use seq_len <= ", model.max_seq_len, raise)});
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

Layout layout_of(const config::LoadedConfig& loaded, int world_size) {
  const config::RunConfig& config = loaded.config;
  // Before the tokenizer is read: the layout needs every size of the model but the vocabulary. What is wrong with seq_len
  // is said below.
  arch::ModelConfig sizes = arch::resolve_model(config.model, 1);
  sizes.max_seq_len = config.model.max_seq_len.value_or(config.train.seq_len);
  config::refuse_layout(loaded, layout_problems(config, sizes, world_size));
  int64_t tokens = 0;
  if (!config.data.tokenizer.empty()) tokens = data::Tokenizer::load(config.data.tokenizer).vocab_size();
  const arch::ModelConfig model = arch::resolve_model(config.model, tokens);
  if (tokens > model.vocab_size)
    throw ConfigError({.code = "LS1120",
                       .what = cat("the tokenizer ", config.data.tokenizer, " has ", tokens,
                                   " tokens, but model.vocab_size = ", model.vocab_size),
                       .where = origin(loaded, "model.vocab_size"),
                       .way_out = config.model.from.empty()
                                      ? cat("set model.vocab_size = ", tokens, " or leave it out")
                                      : cat("use the tokenizer that came with ", config.model.from)});
  if (config.train.seq_len > model.max_seq_len) throw too_long(loaded, model);
  return make_layout(loaded, model, world_size);
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
