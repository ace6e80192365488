// The command line: lockstep <verb> [run.toml...] [-n N] [--json] [--section.field=value ...] [the verb's own flags].
#pragma once

#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/config/load.h"
#include "lockstep/launch/identity.h"

namespace lockstep::apps {

// A flag of one verb: `--name`, or `--name VALUE` where it takes one.
struct Flag {
  std::string_view name;
  std::string_view value;  // what stands for the value in --help; empty = a switch
  std::string_view help;
  std::string_view may_differ{};  // why each rank may be given another value; empty: all are given the same
};

// What was written, taken apart by the verb's row in the table of verbs. Accessors are inline: the runtime library uses
// this header too.
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

  bool has(const std::string& flag) const { return flags.contains(flag); }

  std::string value(const std::string& flag, const std::string& otherwise = "") const {
    const auto found = flags.find(flag);
    return found == flags.end() ? otherwise : found->second;
  }

  // Of a flag that may be written several times.
  std::vector<std::string> values(const std::string& flag) const {
    std::vector<std::string> values;
    for (const auto& [name, value] : flags_in_order) {
      if (name == flag) values.push_back(value);
    }
    return values;
  }

  // ConfigError LS1005 where the value is not a number of the kind.
  int64_t integer(const std::string& flag, int64_t otherwise) const { return number_of(flag, otherwise, "an integer"); }
  double number(const std::string& flag, double otherwise) const { return number_of(flag, otherwise, "a number"); }

  // The arguments that are configuration files (*.toml), and the others.
  std::vector<std::filesystem::path> config_files() const {
    std::vector<std::filesystem::path> files;
    for (const std::string& argument : arguments) {
      if (is_config(argument)) files.emplace_back(argument);
    }
    return files;
  }
  std::vector<std::string> words() const {
    std::vector<std::string> words;
    for (const std::string& argument : arguments) {
      if (!is_config(argument)) words.push_back(argument);
    }
    return words;
  }

 private:
  static bool is_config(std::string_view argument) { return argument.ends_with(".toml"); }

  template <typename Number>
  Number number_of(const std::string& flag, Number otherwise, const char* kind) const {
    const auto found = flags.find(flag);
    if (found == flags.end()) return otherwise;
    const std::string& text = found->second;
    Number number{};
    const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
    if (read.ec == std::errc() && read.ptr == text.data() + text.size()) return number;
    throw ConfigError({.code = "LS1005", .what = "--" + flag + " " + text + ": " + kind + " is needed"});
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
  throw ConfigError({.code = "LS1004",
                     .what = "lockstep " + command_line.verb + " does not know '" + words[0] + "'",
                     .way_out = "a configuration is a file that ends in .toml; lockstep " + command_line.verb + " --help tells more"});
}

// The configuration of the command line's files and overrides; ConfigError LS1004 where it names no file.
inline config::LoadedConfig load_config(const CommandLine& command_line) {
  const auto files = command_line.config_files();
  if (files.empty() && command_line.overrides.empty()) {
    throw ConfigError({.code = "LS1004",
                       .what = "lockstep " + command_line.verb + " needs a configuration, and none was named",
                       .way_out = "lockstep " + command_line.verb + " run.toml; docs/config.md lists what it may say"});
  }
  return config::load_config(files, command_line.overrides);
}

}  // namespace lockstep::apps
