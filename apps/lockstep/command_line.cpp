#include "apps/lockstep/command_line.h"

#include <algorithm>

#include "apps/lockstep/verbs.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::apps {
namespace {

[[noreturn]] void refuse_flag(const Verb& verb, const std::string& written, const std::string& name) {
  std::vector<std::string> known = {"help"};
  if (verb.has_json) known.emplace_back("json");
  for (const Flag& flag : verb.flags) known.emplace_back(flag.name);
  std::vector<std::string> meant;
  for (const config::Section& section : config::sections()) {
    if (verb.takes_config && config::find_field(section.name, name)) meant.push_back(section.name + "." + name);
  }
  if (const std::string near = nearest(name, known); meant.empty() && !near.empty()) meant.push_back(near);
  reject("LS1002", cat("unknown flag '", written, "' of lockstep ", verb.name),
         meant.empty() ? cat("lockstep ", verb.name, " --help lists them") : cat("did you mean '--", join(meant, "' or '--"), "'?"));
}

class Parser {
 public:
  Parser(const Verb& verb, const std::vector<std::string>& arguments) : verb_(verb), arguments_(arguments) {}

  CommandLine parse() {
    result_.verb = verb_.name;
    bool flags_ended = false;
    while (at_ < arguments_.size()) {
      const std::string& argument = arguments_[at_++];
      if (flags_ended || argument.size() < 2 || argument[0] != '-') {
        result_.arguments.push_back(argument);
      } else if (argument == "--") {
        flags_ended = true;
      } else if (argument == "-h" || argument == "--help") {
        result_.help = true;
      } else if (argument.starts_with("-n") && verb_.takes_config) {
        take_ranks(argument);
      } else if (argument.starts_with("--")) {
        take_flag(argument);
      } else {
        refuse_flag(verb_, argument, argument.substr(1));
      }
    }
    return std::move(result_);
  }

 private:
  void take_flag(const std::string& argument) {
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    const bool has_value = equals != std::string::npos;
    const auto value = [&] { return has_value ? argument.substr(equals + 1) : next_value(argument); };

    if (const auto flag = std::ranges::find(verb_.flags, std::string_view(name), &Flag::name); flag != verb_.flags.end()) {
      if (flag->value.empty() && has_value) reject("LS1005", cat(argument, ": --", name, " takes no value"));
      const bool bare = flag->value.empty() || (flag->optional_value() && !has_value);
      result_.flags[name] = bare ? "" : value();
      result_.flags_in_order.emplace_back(name, result_.flags[name]);
      if (flag->may_differ.empty()) result_.common_flags.push_back(result_.flags_in_order.back());
    } else if (verb_.has_json && argument == "--json") {
      result_.json = true;
    } else if (verb_.takes_config && name.find('.') != std::string::npos) {
      result_.overrides.push_back({.key = name, .value = value()});
    } else {
      refuse_flag(verb_, argument, name);
    }
  }

  // -n 4 or -n4.
  void take_ranks(const std::string& argument) {
    const std::string text = argument.size() > 2 ? argument.substr(2) : next_value(argument);
    result_.ranks = parse_number<int>(text);
    if (result_.ranks.value_or(0) < 1) reject("LS1005", cat("-n ", text, ": a number of ranks, 1 or more, is needed"));
  }

  std::string next_value(const std::string& flag) {
    if (at_ == arguments_.size() || arguments_[at_].starts_with("--"))
      reject("LS1003", cat(flag, " needs a value"), cat("lockstep ", verb_.name, " --help shows which"));
    return arguments_[at_++];
  }

  const Verb& verb_;
  const std::vector<std::string>& arguments_;
  size_t at_ = 0;
  CommandLine result_;
};

}  // namespace

CommandLine parse_command_line(const Verb& verb, const std::vector<std::string>& arguments) {
  return Parser(verb, arguments).parse();
}

}  // namespace lockstep::apps
