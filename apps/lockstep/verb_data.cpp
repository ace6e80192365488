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
    if (shown_) print("\r\x1b[K", stderr);
  }
  void show(const fs::path& file, int64_t bytes) {
    if (!terminal_ || bytes < next_) return;
    next_ = bytes + kMiB;
    shown_ = true;
    print(cat("\r\x1b[K", file.string(), "  ", format_bytes(static_cast<double>(bytes))), stderr);
  }

 private:
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
  int64_t next_ = 0;
};

void print_row(const char* name, const std::string& value) {
  print(cat("  ", pad_right(name, 16), value, "\n"));
}

std::string bytes_per_token(int64_t bytes, int64_t tokens) {
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.2f", static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(1, tokens)));
  return buffer.data();
}

// The files behind the name of the sub-verb.
std::vector<fs::path> files_of(const CommandLine& line) {
  return {line.arguments.begin() + 1, line.arguments.end()};
}

std::string require_flag(const CommandLine& line, const std::string& flag) {
  if (line.has(flag) && !line.value(flag).empty()) return line.value(flag);
  reject("LS1004", cat("lockstep data ", line.arguments[0], " needs --", flag));
}

void make_folder_of(const fs::path& file) {
  std::error_code ignored;  // whoever writes the file reports the failure
  if (file.has_parent_path()) fs::create_directories(file.parent_path(), ignored);
}

int data_tokenizer(const CommandLine& line) {
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
  print(cat(out.string(), "\n"));
  print_row("vocabulary", cat(vocabulary.size(), " ids, ", vocabulary.merges.size(), " merges"));
  print_row("text", cat(bytes, " bytes, ", tokens, " tokens"));
  print_row("compression", cat(bytes_per_token(bytes, tokens), " bytes/token"));
  if (vocabulary.size() < wanted)
    print(cat("warning: the text has merges for ", vocabulary.size(), " ids only, ", wanted,
              " were asked for; set model.vocab_size to ", vocabulary.size(), " or more\n"),
          stderr);
  return 0;
}

int data_prepare(const CommandLine& line) {
  const fs::path out = require_flag(line, "out");
  const data::Tokenizer tokenizer = data::Tokenizer::load(require_flag(line, "tokenizer"));
  data::PrepareCounts counts;
  {
    Progress progress;
    counts = data::prepare(files_of(line), tokenizer, out,
                           {.append_eod = !line.has("no-append-eod"),
                            .progress = [&](const fs::path& file, int64_t bytes) { progress.show(file, bytes); }});
  }
  print(cat(out.string(), ".bin, ", out.string(), ".idx\n"));
  print_row("documents", cat(counts.documents));
  print_row("tokens", cat(counts.tokens, ", ids below ", tokenizer.vocab_size()));
  print_row("text",
            cat(counts.text_bytes, " bytes, ", bytes_per_token(counts.text_bytes, counts.tokens), " bytes/token"));
  if (counts.repaired_documents > 0)
    print(cat("warning: ", counts.repaired_documents, " documents held malformed UTF-8, which was read as U+FFFD\n"), stderr);
  return 0;
}

int data_inspect(const CommandLine& line) {
  for (const fs::path& file : files_of(line)) print(data::inspect(file));
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
  if (line.arguments.size() > 1) reject("LS1004", cat("lockstep data demo takes no file: ", line.arguments[1]));
  const fs::path out = require_flag(line, "out");
  const fs::path cache = line.value("cache", (out / "source").string());
  fetch_demo_corpus(cache);
  const data::DemoCorpus corpus = data::write_demo_corpus(cache, out);
  const auto list = [](const char* part, const std::vector<fs::path>& files, int64_t bytes) {
    print(cat(part, ", ", bytes, " bytes\n"));
    for (const fs::path& file : files) print(cat("  ", file.string(), "\n"));
  };
  list("train", corpus.train, corpus.train_bytes);
  list("validation", corpus.validation, corpus.validation_bytes);
  return 0;
}

struct SubVerb {
  std::string_view name;
  std::vector<std::string> flags;  // that it takes
  bool needs_files;
  int (*run)(const CommandLine&);
};

void check_line(const CommandLine& line, const SubVerb& verb) {
  for (const auto& [flag, value] : line.flags)
    if (std::find(verb.flags.begin(), verb.flags.end(), flag) == verb.flags.end())
      reject("LS1002", cat("--", flag, " is not a flag of lockstep data ", verb.name),
             verb.flags.empty() ? "it takes none" : cat("it takes --", join(verb.flags, ", --")));
  if (verb.needs_files && line.arguments.size() < 2)
    reject("LS1004", cat("lockstep data ", verb.name, " names no file"), "lockstep data --help shows how it is written");
}

}  // namespace

int verb_data(const CommandLine& line) {
  static const std::vector<SubVerb> table = {{"tokenizer", {"vocab-size", "out"}, true, data_tokenizer},
                                             {"prepare", {"tokenizer", "out", "no-append-eod"}, true, data_prepare},
                                             {"inspect", {}, true, data_inspect},
                                             {"demo", {"out", "cache"}, false, data_demo}};
  const std::string name = line.arguments.empty() ? "" : line.arguments[0];
  const auto found = std::find_if(table.begin(), table.end(), [&](const SubVerb& verb) { return verb.name == name; });
  if (found == table.end())
    reject("LS1004", cat("lockstep data '", name, "'"), "write tokenizer, prepare, inspect or demo; lockstep data --help tells more");
  check_line(line, *found);
  return found->run(line);
}

}  // namespace lockstep::apps
