// The command line: lockstep <verb> [run.toml...] [-n N] [--json] [--section.field=value ...] [the verb's own flags].
#pragma once

#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/load.h"
#include "lockstep/launch/identity.h"

namespace lockstep::apps {

// All of the text, at once.
inline void print(std::string_view text, std::FILE* to = stdout) {
  std::fwrite(text.data(), 1, text.size(), to);
  std::fflush(to);
}

// Throws the ConfigError of that code: what is wrong, and the way out.
[[noreturn]] inline void reject(const char* code, std::string what, std::string way_out = "") {
  throw ConfigError({.code = code, .what = std::move(what), .way_out = std::move(way_out)});
}

// A flag of one verb: `--name`, or `--name VALUE` where it takes one.
struct Flag {
  std::string_view name;
  std::string_view value;  // what stands for the value in --help; empty = a switch; "[=FILE]" = optional, behind = alone
  std::string_view help;
  std::string_view may_differ{};  // why each rank may be given another value; empty: all are given the same
  bool optional_value() const { return value.starts_with("[="); }
};

// What was written, taken apart by the verb's row in the table of verbs. Accessors are inline: the runtime library uses
// this header too.
struct RuntimeCall;  // runtime_call.h
struct CommandLine {
  std::string verb{};
  std::vector<std::string> arguments{};           // in order, without flags
  std::optional<int> ranks{};                     // -n
  bool json = false;                              // --json
  bool help = false;                              // --help
  std::vector<config::Override> overrides{};      // --section.field=value, in order
  std::map<std::string, std::string> flags{};     // the verb's own, without "--"; a switch has an empty value
  std::vector<std::pair<std::string, std::string>> flags_in_order{};  // the same, each time one was written
  std::vector<std::pair<std::string, std::string>> common_flags{};  // of them those that all ranks are given alike
  std::vector<std::string> written{};             // all of it as it was written, the verb first: what further ranks get
  launch::Identity identity{};                    // which rank this process is
  int (*linked_runtime)(const RuntimeCall*) = nullptr;  // of a program that is linked with the runtime library

  bool has(const std::string& flag) const { return flags.contains(flag); }

  std::string value(const std::string& flag, const std::string& otherwise = "") const {
    const auto found = flags.find(flag);
    return found == flags.end() ? otherwise : found->second;
  }

  // Of a flag that may be written several times.
  std::vector<std::string> values(const std::string& flag) const {
    std::vector<std::string> values;
    for (const auto& [name, value] : flags_in_order)
      if (name == flag) values.push_back(value);
    return values;
  }

  // ConfigError LS1005 where the value is not a number of the kind, or not from `least` to `most`.
  int64_t integer(const std::string& flag, int64_t otherwise) const { return number_of(flag, otherwise, "an integer"); }
  int64_t integer_within(const std::string& flag, int64_t otherwise, int64_t least, int64_t most) const {
    const int64_t number = integer(flag, otherwise);
    if (number < least || number > most) reject("LS1005", cat("--", flag, " ", number, ": ", least, " to ", most, " is needed"));
    return number;
  }
  double number(const std::string& flag, double otherwise) const { return number_of(flag, otherwise, "a number"); }

  // The arguments that are configuration files (*.toml), and the others.
  std::vector<std::filesystem::path> config_files() const {
    std::vector<std::filesystem::path> files;
    for (const std::string& argument : arguments)
      if (is_config(argument)) files.emplace_back(argument);
    return files;
  }
  std::vector<std::string> words() const {
    std::vector<std::string> words = arguments;
    std::erase_if(words, is_config);
    return words;
  }

 private:
  static bool is_config(std::string_view argument) { return argument.ends_with(".toml"); }

  template <typename Number>
  Number number_of(const std::string& flag, Number otherwise, const char* kind) const {
    const auto found = flags.find(flag);
    if (found == flags.end()) return otherwise;
    if (const auto number = parse_number<Number>(found->second)) return *number;
    reject("LS1005", cat("--", flag, " ", found->second, ": ", kind, " is needed"));
  }
};

struct Verb;

// Takes `arguments` (those after the verb) apart. ConfigError LS1002 unknown flag with the nearest name, LS1003 missing
// value, LS1005 bad value.
CommandLine parse_command_line(const Verb& verb, const std::vector<std::string>& arguments);

// ConfigError LS1004 where something was written that is neither a configuration file nor a flag.
inline void refuse_words(const CommandLine& command_line) {
  const std::vector<std::string> words = command_line.words();
  if (words.empty()) return;
  reject("LS1004", "lockstep " + command_line.verb + " does not know '" + words[0] + "'",
         "a configuration is a file that ends in .toml; lockstep " + command_line.verb + " --help tells more");
}

// The configuration of the command line's files and overrides; ConfigError LS1004 where it names no file.
inline config::LoadedConfig load_config(const CommandLine& command_line) {
  const auto files = command_line.config_files();
  if (files.empty() && command_line.overrides.empty()) {
    reject("LS1004", "lockstep " + command_line.verb + " needs a configuration, and none was named",
           "lockstep " + command_line.verb + " run.toml; docs/config.md lists what it may say");
  }
  return config::load_config(files, command_line.overrides);
}

}  // namespace lockstep::apps
