// `lockstep generate`: text from a run's checkpoint.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "apps/lockstep/runtime/verbs.h"
#include "lockstep/arch/model_json.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/directory.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/engine/parameter_store.h"
#include "lockstep/infer/generate.h"

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;

struct Source {
  fs::path step;       // a step's folder
  fs::path tokenizer;  // where the run keeps its own; may not exist
};

// What the command line names: a run.toml, a run directory, its checkpoints/, or one step of it.
Source find_source(const CommandLine& command_line) {
  fs::path path;
  if (!command_line.config_files().empty()) {
    path = load_config(command_line).config.run.dir;
  } else if (command_line.arguments.size() == 1) {
    if (!command_line.overrides.empty())
      throw ConfigError({.code = "LS1002",
                         .what = cat("--", command_line.overrides.front().key, " changes a run.toml, and none was named"),
                         .way_out = "the checkpoint says what the model is"});
    path = command_line.arguments[0];
  } else {
    throw ConfigError({.code = "LS1004", .what = "lockstep generate needs one run, step or run.toml"});
  }
  path = path.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (checkpoint::parse_step_name(path.filename().string()))
    return {path, path.parent_path().parent_path() / "tokenizer.json"};
  const fs::path run = path.filename() == "checkpoints" ? path.parent_path() : path;
  const checkpoint::Latest latest = checkpoint::find_latest(run / "checkpoints");
  for (const checkpoint::StepFolder& folder : latest.skipped)
    std::fputs(cat("skipped ", folder.path.string(), ": ", folder.problem, "\n").c_str(), stderr);
  if (!latest.path)
    throw CheckpointError({.code = "LS1310", .what = cat("no whole checkpoint in ", (run / "checkpoints").string()),
                           .way_out = "train first: lockstep train run.toml"});
  return {*latest.path, run / "tokenizer.json"};
}

std::vector<int64_t> parse_ids(const std::string& text) {
  std::vector<int64_t> ids;
  for (const std::string& part : split(text, ',')) {
    int64_t id = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), id);
    if (part.empty() || read.ec != std::errc() || read.ptr != part.data() + part.size())
      throw ConfigError({.code = "LS1005", .what = cat("--prompt-ids ", text, ": '", part, "' is not a token id")});
    ids.push_back(id);
  }
  return ids;
}

std::vector<int64_t> prompt_ids(const CommandLine& command_line, const std::optional<data::Tokenizer>& tokenizer,
                                const Source& source) {
  if (command_line.has("prompt") == command_line.has("prompt-ids"))
    throw ConfigError({.code = "LS1003", .what = "lockstep generate needs either --prompt TEXT or --prompt-ids 1,2,3"});
  if (command_line.has("prompt-ids")) return parse_ids(command_line.value("prompt-ids"));
  if (!tokenizer)
    throw DataError({.code = "LS1203", .what = cat(source.tokenizer.string(), ": no such file"),
                     .way_out = "the run was trained without data.tokenizer: use --prompt-ids"});
  const std::vector<int32_t> ids = tokenizer->encode(command_line.value("prompt"));
  return {ids.begin(), ids.end()};
}

// `room`: tokens that fit behind the prompt.
infer::GenerateOptions options_of(const CommandLine& command_line, const std::optional<data::Tokenizer>& tokenizer,
                                  int64_t room) {
  infer::GenerateOptions options{
      .max_new_tokens = command_line.integer("max-new-tokens", std::clamp<int64_t>(room, 1, 64)),
      .sampling = {.temperature = command_line.number("temperature", 0),
                   .top_k = command_line.integer("top-k", 0),
                   .top_p = command_line.number("top-p", 1),
                   .seed = static_cast<uint64_t>(command_line.integer("seed", 1234))}};
  const infer::SamplingOptions& sampling = options.sampling;
  const auto require = [](bool good, const char* what) {
    if (!good) throw ConfigError({.code = "LS1005", .what = what});
  };
  require(options.max_new_tokens >= 1, "--max-new-tokens: 1 or more is needed");
  require(sampling.temperature >= 0 && sampling.temperature <= 100, "--temperature: 0 to 100 is needed");
  require(sampling.top_k >= 0, "--top-k: 0 (all) or more is needed");
  require(sampling.top_p > 0 && sampling.top_p <= 1, "--top-p: above 0 and at most 1 is needed");
  if (tokenizer && tokenizer->eos_id()) options.stop_token = *tokenizer->eos_id();
  return options;
}

std::string text_of(const data::Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  return tokenizer.decode(std::vector<int32_t>(ids.begin(), ids.end()));
}

}  // namespace

int verb_generate(const CommandLine& command_line) {
  if (command_line.ranks.value_or(1) != 1)
    throw ConfigError({.code = "LS1005",
                       .what = cat("-n ", *command_line.ranks, ": lockstep generate runs on one rank"),
                       .way_out = "leave -n out; one rank reads what any number of ranks saved"});
  const Source source = find_source(command_line);
  const checkpoint::TrainState train_state =
      checkpoint::read_train_state(source.step, checkpoint::read_manifest(source.step));
  const arch::ModelConfig model = arch::parse_model_json(train_state.model, source.step.string());
  std::optional<data::Tokenizer> tokenizer;
  if (fs::exists(source.tokenizer)) tokenizer.emplace(data::Tokenizer::load(source.tokenizer));
  std::vector<int64_t> ids = prompt_ids(command_line, tokenizer, source);
  const int64_t room = model.max_seq_len - static_cast<int64_t>(ids.size());
  const infer::GenerateOptions options = options_of(command_line, tokenizer, room);

  engine::ParameterStore store(arch::param_table(model), {.training = false});
  checkpoint::load_parameters_only(source.step, store.state());
  model::Decoder decoder(model, store);

  // People see the text as it comes, the prompt with the first token, when it is known to be good; --json is one object
  // at the end.
  std::optional<data::StreamDecoder> stream;
  if (tokenizer && !command_line.json) stream.emplace(*tokenizer);
  bool prompt_shown = false;
  const std::vector<int64_t> continuation = infer::generate(decoder, model, ids, options, [&](int64_t id) {
    if (!stream) return;
    if (!std::exchange(prompt_shown, true)) std::fputs(text_of(*tokenizer, ids).c_str(), stdout);
    std::fputs(stream->push(static_cast<int32_t>(id)).c_str(), stdout);
    std::fflush(stdout);
  });
  ids.insert(ids.end(), continuation.begin(), continuation.end());
  if (stream) {
    std::fputs((stream->finish() + "\n").c_str(), stdout);
  } else if (command_line.json) {
    const OrderedJson object = {{"ids", ids}, {"text", tokenizer ? OrderedJson(text_of(*tokenizer, ids)) : OrderedJson()}};
    std::fputs((object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n").c_str(), stdout);
  } else {
    std::vector<std::string> words;
    for (const int64_t id : ids) words.push_back(std::to_string(id));
    std::fputs((join(words, ",") + "\n").c_str(), stdout);
  }
  return 0;
}

}  // namespace lockstep::apps
