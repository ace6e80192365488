// `lockstep chat`: a conversation with a model, its answers as they come.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>

#include "apps/lockstep/runtime/generate_options.h"
#include "apps/lockstep/runtime/line_editor.h"
#include "apps/lockstep/runtime/loaded_model.h"
#include "apps/lockstep/runtime/verbs.h"
#include "lockstep/base/text.h"
#include "lockstep/chat/chat_template.h"
#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/infer/stop_text.h"

namespace lockstep::apps {
namespace {

// Ctrl-C ends an answer, not the program. The handler can reach nothing but a global.
std::atomic<bool> interrupted{false};

class Interrupts {
 public:
  Interrupts() {
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    sigaction(SIGINT, &action, &before_);  // no SA_RESTART: a line that is being typed ends too
  }
  ~Interrupts() { sigaction(SIGINT, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

class Talk {
 public:
  Talk(const CommandLine& command_line, const ModelSource& source, LoadedModel& loaded)
      : tokenizer_(data::Tokenizer::load(source.tokenizer)),
        template_(chat::ChatTemplate::load(source.tokenizer.parent_path())),
        options_(generate_options(command_line, source, &tokenizer_, 512)),
        capacity_(command_line.integer_within("context", std::min<int64_t>(4096, source.model.max_seq_len), 2, source.model.max_seq_len)),
        stops_(command_line.values("stop")),
        generator_(loaded.decoder(), source.model, 1, capacity_) {
    if (command_line.has("raw")) template_.reset();
    options_.reuse_prefix = true;
    if (command_line.has("system")) system_ = command_line.value("system");
    reset();
  }

  void reset() {
    messages_.clear();
    text_.clear();
    if (system_ && template_) messages_.push_back({.role = "system", .content = *system_});
    if (system_ && !template_) text_ = *system_;
  }

  // One turn: what was typed, and the answer to it.
  void turn(const std::string& typed) {
    const std::vector<chat::Message> before = messages_;
    const std::string text_before = text_;
    try {
      if (template_) messages_.push_back({.role = "user", .content = typed});
      const std::string prompt = template_ ? template_->prompt(messages_, std::time(nullptr)) : text_ + typed;
      const std::string answer = generate(prompt);
      if (template_)
        messages_.push_back({.role = "assistant", .content = answer});
      else
        text_ = prompt + answer;
    } catch (const DataError&) {  // the turn did not take place
      messages_ = before;
      text_ = text_before;
      throw;
    }
  }

 private:
  std::string generate(const std::string& prompt) {
    const std::vector<int32_t> encoded = tokenizer_.encode(prompt);
    const std::vector<int64_t> ids(encoded.begin(), encoded.end());
    infer::GenerateOptions options = options_;
    const int64_t room = capacity_ - static_cast<int64_t>(ids.size());
    if (room < 1)
      throw DataError({.code = "LS1241",
                       .what = cat("the talk has ", ids.size(), " tokens, and ", capacity_, " is the most"),
                       .way_out = "/reset starts a new one; --context N allows more where the model does"});
    options.max_new_tokens = std::min(options.max_new_tokens, room);
    data::StreamDecoder decoder(tokenizer_);
    infer::StopText stop(stops_);
    std::string answer;
    const auto show = [&](const std::string& text) {
      print(text);
      answer += text;
    };
    interrupted = false;
    const std::vector<std::vector<int64_t>> prompts = {ids};
    generator_.generate(prompts, options, [&](size_t, int64_t id) {
      if (std::ranges::count(options.stop_tokens, id) > 0) return true;
      show(stop.push(decoder.push(static_cast<int32_t>(id))));
      return !stop.stopped() && !interrupted;
    });
    if (!stop.stopped()) show(stop.push(decoder.finish()));
    show(stop.finish());
    print("\n");
    return answer;
  }

  data::Tokenizer tokenizer_;
  std::optional<chat::ChatTemplate> template_;
  infer::GenerateOptions options_;
  int64_t capacity_;
  std::vector<std::string> stops_;
  infer::Generator generator_;
  std::optional<std::string> system_{};
  std::vector<chat::Message> messages_{};
  std::string text_{};  // with --raw: all that was written
};

void check_template(const CommandLine& command_line, const ModelSource& source) {
  const std::filesystem::path folder = source.tokenizer.parent_path();
  if (command_line.has("raw") || chat::ChatTemplate::load(folder)) return;
  reject("LS1251", cat(folder.string(), " has no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json"),
         "--raw lets the model continue what you write, as lockstep generate does");
}

}  // namespace

int verb_chat(const CommandLine& command_line) {
  const ModelSource source = find_model(command_line);
  check_template(command_line, source);
  LoadedModel loaded(command_line, source);
  Talk talk(command_line, source, loaded);
  const bool person = isatty(STDIN_FILENO);
  if (person) print("/reset forgets the talk, /exit ends it, Ctrl-C ends an answer\n");
  const Interrupts interrupts;
  while (const std::optional<std::string> line = read_line("> ")) {
    if (*line == "/exit") break;
    if (*line == "/reset") {
      talk.reset();
      continue;
    }
    if (line->empty()) continue;
    if (line->starts_with('/') && line->find(' ') == std::string::npos) {
      print(cat(*line, ": unknown; there are /reset and /exit\n"));
      continue;
    }
    try {
      talk.turn(*line);
    } catch (const DataError& error) {
      if (!person) throw;
      print(cat(error.what(), "\n"), stderr);
    }
  }
  return 0;
}

}  // namespace lockstep::apps
