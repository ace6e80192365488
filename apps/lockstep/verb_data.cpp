// lockstep data tokenizer | prepare | inspect | demo
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>

#include "apps/lockstep/demo_corpus_script.h"
#include "apps/lockstep/verbs.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/data/bpe_trainer.h"
#include "lockstep/data/demo_corpus.h"
#include "lockstep/data/inspect.h"
#include "lockstep/data/prepare.h"

extern char** environ;

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;

// A line that is rewritten in place, for people only: nothing where stderr is not a terminal.
class Progress {
 public:
  ~Progress() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
  }
  void show(const fs::path& file, int64_t bytes) {
    if (!terminal_ || bytes < next_) return;
    next_ = bytes + kMiB;
    shown_ = true;
    std::fputs(cat("\r\x1b[K", file.string(), "  ", format_bytes(static_cast<double>(bytes))).c_str(), stderr);
  }

 private:
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
  int64_t next_ = 0;
};

void print_row(const char* name, const std::string& value) {
  std::fputs(cat("  ", pad_right(name, 16), value, "\n").c_str(), stdout);
}

std::string fixed(double value) {
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.2f", value);
  return buffer.data();
}

std::string bytes_per_token(int64_t bytes, int64_t tokens) {
  return fixed(static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(1, tokens)));
}

// What each sub-verb takes: its files behind its own name, and its flags.
std::vector<fs::path> files_of(const CommandLine& line) {
  return {line.arguments.begin() + 1, line.arguments.end()};
}

void require_files(const CommandLine& line) {
  if (line.arguments.size() > 1) return;
  throw ConfigError({.code = "LS1004",
                     .what = cat("lockstep data ", line.arguments[0], " names no file"),
                     .way_out = "lockstep data --help shows how it is written"});
}

std::string require_flag(const CommandLine& line, const std::string& flag) {
  if (line.has(flag) && !line.value(flag).empty()) return line.value(flag);
  throw ConfigError({.code = "LS1004", .what = cat("lockstep data ", line.arguments[0], " needs --", flag)});
}

void allow_flags(const CommandLine& line, const std::vector<std::string>& allowed) {
  for (const auto& [flag, value] : line.flags)
    if (std::find(allowed.begin(), allowed.end(), flag) == allowed.end())
      throw ConfigError({.code = "LS1002",
                         .what = cat("--", flag, " is not a flag of lockstep data ", line.arguments[0]),
                         .way_out = allowed.empty() ? "it takes none" : cat("it takes --", join(allowed, ", --"))});
}

void make_folder_of(const fs::path& file) {
  std::error_code ignored;  // whoever writes the file reports the failure
  if (file.has_parent_path()) fs::create_directories(file.parent_path(), ignored);
}

int data_tokenizer(const CommandLine& line) {
  allow_flags(line, {"vocab-size", "out"});
  require_files(line);
  const fs::path out = require_flag(line, "out");
  const int64_t wanted = line.integer("vocab-size", 4096);
  data::BpeTrainer trainer({.vocab_size = wanted});
  int64_t bytes = 0;
  const auto each_document = [&](const std::function<void(std::string_view)>& visit) {
    Progress progress;
    bytes = 0;
    for (const fs::path& file : files_of(line))
      data::for_each_document(file, [&](std::string_view text) {
        visit(text);
        bytes += static_cast<int64_t>(text.size());
        progress.show(file, bytes);
      });
  };
  each_document([&](std::string_view text) { trainer.add(text); });
  const data::BpeVocabulary vocabulary = trainer.train();
  const std::string json = vocabulary.tokenizer_json();
  make_folder_of(out);
  write_file(out, json);

  const data::Tokenizer tokenizer = data::Tokenizer::parse(json, out.string());
  int64_t tokens = 0;
  each_document([&](std::string_view text) { tokens += static_cast<int64_t>(tokenizer.encode(text).size()); });
  std::fputs(cat(out.string(), "\n").c_str(), stdout);
  print_row("vocabulary", cat(vocabulary.size(), " ids, ", vocabulary.merges.size(), " merges"));
  print_row("text", cat(bytes, " bytes, ", tokens, " tokens"));
  print_row("compression", cat(bytes_per_token(bytes, tokens), " bytes/token"));
  if (vocabulary.size() < wanted)
    std::fputs(cat("warning: the text has merges for ", vocabulary.size(), " ids only, ", wanted,
                   " were asked for; set model.vocab_size to ", vocabulary.size(), " or more\n")
                   .c_str(),
               stderr);
  return 0;
}

int data_prepare(const CommandLine& line) {
  allow_flags(line, {"tokenizer", "out", "no-append-eod"});
  require_files(line);
  const fs::path out = require_flag(line, "out");
  const data::Tokenizer tokenizer = data::Tokenizer::load(require_flag(line, "tokenizer"));
  data::PrepareCounts counts;
  {
    Progress progress;
    counts = data::prepare(files_of(line), tokenizer, out,
                           {.append_eod = !line.has("no-append-eod"),
                            .progress = [&](const fs::path& file, int64_t bytes) { progress.show(file, bytes); }});
  }
  std::fputs(cat(out.string(), ".bin, ", out.string(), ".idx\n").c_str(), stdout);
  print_row("documents", cat(counts.documents));
  print_row("tokens", cat(counts.tokens, ", ids below ", tokenizer.vocab_size()));
  print_row("text",
            cat(counts.text_bytes, " bytes, ", bytes_per_token(counts.text_bytes, counts.tokens), " bytes/token"));
  if (counts.repaired_documents > 0)
    std::fputs(
        cat("warning: ", counts.repaired_documents, " documents held malformed UTF-8, which was read as U+FFFD\n")
            .c_str(),
        stderr);
  return 0;
}

int data_inspect(const CommandLine& line) {
  allow_flags(line, {});
  require_files(line);
  for (const fs::path& file : files_of(line)) std::fputs(data::inspect(file).c_str(), stdout);
  return 0;
}

// Runs scripts/demo_corpus.sh, whose text the program carries, until `cache` holds the packages' texts.
void fetch_demo_corpus(const fs::path& cache) {
  std::string program = "bash", option = "-c", script(kDemoCorpusScript), name = "demo_corpus", folder = cache.string();
  std::array<char*, 6> arguments = {program.data(), option.data(), script.data(), name.data(), folder.data(), nullptr};
  pid_t child = 0;
  if (const int code = ::posix_spawnp(&child, "bash", nullptr, nullptr, arguments.data(), environ); code != 0)
    throw EnvironmentError({.code = "LS3102", .what = cat("cannot start bash: ", std::strerror(code))});
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  throw EnvironmentError(
      {.code = "LS3103",
       .what = "the demo text could not be fetched; the reason is above",
       .way_out = "any text will do instead: lockstep data tokenizer FILE..., lockstep data prepare FILE..."});
}

int data_demo(const CommandLine& line) {
  allow_flags(line, {"out", "cache"});
  if (line.arguments.size() > 1)
    throw ConfigError({.code = "LS1004", .what = cat("lockstep data demo takes no file: ", line.arguments[1])});
  const fs::path out = require_flag(line, "out");
  const fs::path cache = line.value("cache", (out / "source").string());
  fetch_demo_corpus(cache);
  const data::DemoCorpus corpus = data::write_demo_corpus(cache, out);
  const auto print = [](const char* part, const std::vector<fs::path>& files, int64_t bytes) {
    std::fputs(cat(part, ", ", bytes, " bytes\n").c_str(), stdout);
    for (const fs::path& file : files) std::fputs(cat("  ", file.string(), "\n").c_str(), stdout);
  };
  print("train", corpus.train, corpus.train_bytes);
  print("validation", corpus.validation, corpus.validation_bytes);
  return 0;
}

}  // namespace

int verb_data(const CommandLine& line) {
  static const std::map<std::string, int (*)(const CommandLine&)> kVerbs = {
      {"tokenizer", data_tokenizer}, {"prepare", data_prepare}, {"inspect", data_inspect}, {"demo", data_demo}};
  const std::string name = line.arguments.empty() ? "" : line.arguments[0];
  const auto found = kVerbs.find(name);
  if (found == kVerbs.end())
    throw ConfigError({.code = "LS1004",
                       .what = cat("lockstep data '", name, "'"),
                       .way_out = "write tokenizer, prepare, inspect or demo; lockstep data --help tells more"});
  return found->second(line);
}

}  // namespace lockstep::apps
