// `lockstep generate`: prompts continued by the model of a run or of a Hugging Face directory.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>

#include "apps/lockstep/runtime/generate_options.h"
#include "apps/lockstep/runtime/loaded_model.h"
#include "apps/lockstep/runtime/model_source.h"
#include "apps/lockstep/runtime/verbs.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/infer/stop_text.h"
#include "lockstep/nn/gemm_rows.h"

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;
using MaybeTokenizer = std::optional<data::Tokenizer>;

Ids parse_ids(const std::string& text) {
  Ids ids;
  for (const std::string& part : split(text, ',')) {
    const auto id = parse_number<int64_t>(part);
    if (!id)
      reject("LS1005", cat("--prompt-ids ", text, ": '", part, "' is not a token id"));
    ids.push_back(*id);
  }
  return ids;
}

// Prompts from flags, in the order in which they were written.
class Prompts {
 public:
  Prompts(const MaybeTokenizer& tokenizer, const fs::path& file) : tokenizer_(tokenizer), tokenizer_file_(file) {}

  std::vector<Ids> read(const CommandLine& command_line) {
    for (const auto& [name, value] : command_line.flags_in_order) {
      if (name == "prompt") prompts_.push_back(encode(value));
      if (name == "prompt-ids") prompts_.push_back(parse_ids(value));
      if (name == "prompt-file") read_file(value);
    }
    if (prompts_.empty())
      reject("LS1003", "lockstep generate needs --prompt TEXT, --prompt-ids 1,2,3 or --prompt-file FILE");
    return std::move(prompts_);
  }

 private:
  Ids encode(const std::string& text) const {
    if (!tokenizer_)
      throw DataError({.code = "LS1203", .what = cat(tokenizer_file_.string(), ": no such file"),
                       .way_out = "the model has no tokenizer: use --prompt-ids"});
    const std::vector<int32_t> ids = tokenizer_->encode(text);
    return {ids.begin(), ids.end()};
  }

  void read_file(const fs::path& path) {
    std::ifstream file(path);
    if (!file) throw DataError({.code = "LS1243", .what = cat(path.string(), ": no such file, or it cannot be read")});
    size_t number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.empty()) continue;
      prompts_.push_back(path.extension() == ".jsonl" ? from_json(line, cat(path.string(), ":", number)) : encode(line));
    }
    if (file.bad()) throw DataError({.code = "LS1243", .what = cat(path.string(), ": cannot be read")});
  }

  Ids from_json(const std::string& line, const std::string& where) const {
    const Json json = parse_json(line, where);
    if (json.is_object() && json.contains("prompt") && json["prompt"].is_string()) return encode(json["prompt"]);
    if (json.is_object() && json.contains("ids") && json["ids"].is_array() &&
        std::ranges::all_of(json["ids"], [](const Json& id) { return id.is_number_integer(); }))
      return json["ids"].get<Ids>();
    throw DataError({.code = "LS1243", .what = "neither \"prompt\", a text, nor \"ids\", a list of integers", .where = where});
  }

  const MaybeTokenizer& tokenizer_;
  fs::path tokenizer_file_;
  std::vector<Ids> prompts_;
};

// One prompt's text while it grows.
struct Text {
  std::optional<data::StreamDecoder> decoder;
  infer::StopText stop;
};

OrderedJson timing_json(const infer::Timing& timing, LoadedModel& loaded) {
  const auto rate = [](int64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0; };
  OrderedJson json = {{"first_token_seconds", timing.first_token_seconds},
                      {"prefill_tokens", timing.prompt_tokens},
                      {"prefill_tokens_per_second", rate(timing.prompt_tokens, timing.prefill_seconds)},
                      {"decode_tokens", timing.decode_tokens},
                      {"decode_tokens_per_second", rate(timing.decode_tokens, timing.decode_seconds)},
                      {"decode_steps", timing.decode_steps}};
  if (loaded.ranks() == 1) return json;
  const double all = timing.prefill_seconds + timing.decode_seconds;
  json["ranks"] = loaded.ranks();
  json["communication_share"] = all > 0 ? loaded.take_communication_seconds() / all : 0.0;
  return json;
}

std::string timing_text(const OrderedJson& timing) {
  const auto number = [&](const char* key) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", timing.at(key).get<double>());
    return std::string(text);
  };
  std::string line = cat("first token after ", number("first_token_seconds"), " s; prompt ", timing["prefill_tokens"], " tokens, ",
                         number("prefill_tokens_per_second"), " tok/s; then ", timing["decode_tokens"], " tokens, ",
                         number("decode_tokens_per_second"), " tok/s");
  if (timing.contains("ranks"))
    line += cat("; ", timing["ranks"], " ranks, ", std::lround(100 * timing["communication_share"].get<double>()),
                " % of the time in communication");
  return line + "\n";
}

std::string_view name_of(infer::StopReason reason) {
  if (reason == infer::StopReason::kLength) return "length";
  return reason == infer::StopReason::kStopToken ? "eos" : "stop";
}

// What goes to standard output. People see a single text as it comes, its prompt with the first token, when it is known
// to be good; of several each is a paragraph at the end. --json is one object at the end.
class Output {
 public:
  Output(const CommandLine& command_line, const MaybeTokenizer& tokenizer, const std::vector<Ids>& prompts)
      : json_(command_line.json), tokenizer_(tokenizer), prompts_(prompts) {
    const std::vector<std::string> stops = command_line.values("stop");
    if (!stops.empty() && !tokenizer)
      reject("LS1005", "--stop compares text, and the model has no tokenizer");
    for (size_t i = 0; i < prompts.size(); ++i) {
      texts_.push_back({.decoder = std::nullopt, .stop = infer::StopText(stops)});
      if (tokenizer) texts_.back().decoder.emplace(*tokenizer);
    }
    continued_.resize(prompts.size());
  }

  bool on_token(size_t index, int64_t id) {
    Text& text = texts_[index];
    if (!text.decoder) return true;
    if (streams() && !std::exchange(started_, true)) write(text_of(prompts_[index]));
    add(index, text.stop.push(text.decoder->push(static_cast<int32_t>(id))));
    return !text.stop.stopped();
  }

  void be_silent(bool silent) { silent_ = silent; }

  void finish(const infer::Generated& generated, const OrderedJson& timing) {
    for (size_t i = 0; i < texts_.size(); ++i) {
      Text& text = texts_[i];
      if (text.decoder && !text.stop.stopped()) add(i, text.stop.push(text.decoder->finish()));
      if (text.decoder) add(i, text.stop.finish());
    }
    if (json_) return write(cat(object(generated, timing).dump(-1, ' ', false, OrderedJson::error_handler_t::replace), "\n"));
    if (streams()) return write("\n");
    for (size_t i = 0; i < prompts_.size(); ++i)
      write(cat(i > 0 && tokenizer_ ? "\n" : "",
                tokenizer_ ? cat(text_of(prompts_[i]), continued_[i]) : ids_text(all(generated, i)), "\n"));
  }

 private:
  bool streams() const { return tokenizer_ && !json_ && prompts_.size() == 1; }
  void write(const std::string& text) const {
    if (!silent_) print(text);
  }
  void add(size_t index, const std::string& text) {
    if (streams()) write(text);
    continued_[index] += text;
  }
  std::string text_of(const Ids& ids) const { return tokenizer_->decode(std::vector<int32_t>(ids.begin(), ids.end())); }
  static std::string ids_text(const Ids& ids) {
    std::vector<std::string> words;
    for (const int64_t id : ids) words.push_back(std::to_string(id));
    return join(words, ",");
  }
  Ids all(const infer::Generated& generated, size_t i) const {
    Ids ids = prompts_[i];
    ids.insert(ids.end(), generated.continuations[i].ids.begin(), generated.continuations[i].ids.end());
    return ids;
  }
  OrderedJson object(const infer::Generated& generated, const OrderedJson& timing) const {
    OrderedJson results = OrderedJson::array();
    for (size_t i = 0; i < prompts_.size(); ++i)
      results.push_back({{"ids", all(generated, i)},
                         {"text", tokenizer_ ? OrderedJson(cat(text_of(prompts_[i]), continued_[i])) : OrderedJson()},
                         {"prompt_tokens", prompts_[i].size()},
                         {"stopped_by", name_of(generated.continuations[i].stopped_by)}});
    OrderedJson object = prompts_.size() == 1 ? results[0] : OrderedJson{{"results", results}};
    object["timing"] = timing;
    return object;
  }

  bool json_, started_ = false, silent_ = false;
  const MaybeTokenizer& tokenizer_;
  const std::vector<Ids>& prompts_;
  std::vector<Text> texts_;
  std::vector<std::string> continued_;
};

}  // namespace

int verb_generate_on_rank(const CommandLine& command_line) {
  const ModelSource source = find_model(command_line);
  MaybeTokenizer tokenizer;
  if (fs::exists(source.tokenizer)) tokenizer.emplace(data::Tokenizer::load(source.tokenizer));
  const std::vector<Ids> prompts = Prompts(tokenizer, source.tokenizer).read(command_line);
  size_t longest = 0;
  for (const Ids& prompt : prompts) longest = std::max(longest, prompt.size());
  const int64_t limit = source.model.max_seq_len, length = static_cast<int64_t>(longest);
  const infer::GenerateOptions options =
      generate_options(command_line, source, tokenizer ? &*tokenizer : nullptr, std::clamp<int64_t>(limit - length, 1, 64));
  Output output(command_line, tokenizer, prompts);
  for (const Ids& prompt : prompts) infer::check_prompt(source.model, prompt, options.max_new_tokens, limit);

  LoadedModel loaded(command_line, source);
  return loaded.guarded([&] {
    output.be_silent(!loaded.is_first());
    const int64_t slots = std::min(static_cast<int64_t>(prompts.size()), nn::kFewRows);
    infer::Generator generator(loaded.decoder(), source.model, slots, length + options.max_new_tokens);
    const infer::Generated generated =
        generator.generate(prompts, options, [&](size_t index, int64_t id) { return output.on_token(index, id); });
    const OrderedJson timing = timing_json(generated.timing, loaded);
    output.finish(generated, timing);
    if (!command_line.json && loaded.is_first()) print(timing_text(timing), stderr);
    return 0;
  });
}

}  // namespace lockstep::apps
