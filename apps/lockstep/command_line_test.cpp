// The command line as it is taken apart, and the program as a whole: what it prints and returns.
#include "apps/lockstep/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "apps/lockstep/runtime_call.h"
#include "apps/lockstep/verbs.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const Verb kVerb{.name = "train",
                 .help = "",
                 .usage = "",
                 .flags = {{"quiet", "", "say nothing"}, {"prompt", "TEXT", "the beginning"}},
                 .has_json = true,
                 .takes_config = true};
const Verb kPlain{.name = "data", .help = "", .usage = ""};

std::string refusal(const Verb& verb, const std::vector<std::string>& arguments) {
  try {
    parse_command_line(verb, arguments);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CommandLine, TakesEverythingApart) {
  const CommandLine line =
      parse_command_line(kVerb, {"a.toml", "-n", "4", "--train.steps=5", "--optimizer.lr", "1e-3", "memory", "--json",
                                 "--quiet", "--prompt", "-1", "b.toml", "--", "--not-a-flag"});
  EXPECT_EQ(line.verb, "train");
  EXPECT_EQ(line.ranks, 4);
  EXPECT_TRUE(line.json);
  EXPECT_TRUE(line.has("quiet"));
  EXPECT_EQ(line.value("prompt"), "-1");
  EXPECT_EQ(line.integer("prompt", 0), -1);
  EXPECT_EQ(line.number("temperature", 0.5), 0.5);
  EXPECT_THAT(line.config_files(), ElementsAre("a.toml", "b.toml"));
  EXPECT_THAT(line.words(), ElementsAre("memory", "--not-a-flag"));
  ASSERT_EQ(line.overrides.size(), 2u);
  EXPECT_EQ(line.overrides[0].key, "train.steps");
  EXPECT_EQ(line.overrides[1].value, "1e-3");
  EXPECT_EQ(parse_command_line(kVerb, {"-n8", "--prompt=a=b"}).ranks, 8);
  EXPECT_EQ(parse_command_line(kVerb, {"--prompt=a=b"}).value("prompt"), "a=b");
}

TEST(CommandLine, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(refusal(kVerb, {"--promt", "x"}), "error LS1002: unknown flag '--promt' of lockstep train\n"
                                              "  did you mean '--prompt'?");
  EXPECT_THAT(refusal(kVerb, {"--steps=5"}), HasSubstr("did you mean '--train.steps' or '--trace.steps'?"));
  EXPECT_THAT(refusal(kVerb, {"-x"}), HasSubstr("LS1002"));
  EXPECT_THAT(refusal(kVerb, {"--zzzzzzzz"}), HasSubstr("lockstep train --help lists them"));
  EXPECT_THAT(refusal(kPlain, {"-n", "2"}), HasSubstr("LS1002"));
  EXPECT_THAT(refusal(kPlain, {"--json"}), HasSubstr("LS1002"));
  EXPECT_THAT(refusal(kPlain, {"--train.steps=1"}), HasSubstr("LS1002"));
}

TEST(CommandLine, RefusesBadValues) {
  EXPECT_THAT(refusal(kVerb, {"--prompt"}), HasSubstr("error LS1003: --prompt needs a value"));
  EXPECT_THAT(refusal(kVerb, {"--prompt", "--quiet"}), HasSubstr("LS1003"));
  EXPECT_THAT(refusal(kVerb, {"-n"}), HasSubstr("LS1003"));
  EXPECT_THAT(refusal(kVerb, {"--quiet=1"}), HasSubstr("error LS1005: --quiet=1: --quiet takes no value"));
  for (const char* ranks : {"0", "-1", "two", "2x", ""}) {
    EXPECT_THAT(refusal(kVerb, {"-n", ranks}), HasSubstr("LS1005"));
  }
  EXPECT_THROW(parse_command_line(kVerb, {"--prompt", "5x"}).integer("prompt", 0), ConfigError);
}

TEST(Verbs, NoFlagHidesAField) {
  for (const Verb& verb : verbs()) {
    for (const Flag& flag : verb.flags) EXPECT_THAT(std::string(flag.name), Not(HasSubstr("."))) << verb.name;
    EXPECT_THAT(overview(), HasSubstr(cat("\n  ", verb.name, " ")));
  }
}

TEST(Verbs, HelpListsEveryField) {
  const std::string text = help_text(find_verb("doctor"));
  for (const config::Section& section : config::sections()) {
    for (const config::Field& field : section.fields) EXPECT_THAT(text, HasSubstr("--" + field.key() + "="));
  }
}

struct Outcome {
  int code;
  std::string output;
};

Outcome run(const std::string& arguments, const std::string& redirect = "2>&1") {
  FILE* pipe = ::popen((LOCKSTEP_PROGRAM " " + arguments + " " + redirect).c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, count);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

TEST(Program, HelpAndVersion) {
  EXPECT_EQ(run("").output, overview());
  EXPECT_EQ(run("").code, 0);
  EXPECT_EQ(run("--help").output, overview());
  EXPECT_EQ(run("--version").output, "lockstep " LOCKSTEP_VERSION "\n");
  for (const Verb& verb : verbs()) EXPECT_EQ(run(cat(verb.name, " --help")).output, help_text(verb));
}

TEST(Program, RefusalsGoToStderrWithACode) {
  EXPECT_EQ(run("doctr").output, "error LS1001: unknown verb 'doctr'\n  did you mean 'doctor'?\n");
  EXPECT_EQ(run("doctr").code, 2);
  EXPECT_EQ(run("doctr", "2>/dev/null").output, "");
  EXPECT_EQ(run("config show").code, 2);
  EXPECT_THAT(run("config show").output, HasSubstr("LS1004"));
  EXPECT_EQ(run("config show no-such-run.toml").code, 7);
}

// This test links what the program links.
TEST(Program, StartsWithoutLibTorch) {
  std::ifstream file("/proc/self/maps");
  const std::string maps(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(maps, HasSubstr("liblockstep_core.so"));
  EXPECT_THAT(maps, Not(HasSubstr("libtorch")));
}

TEST(Program, ConfigDocsIsTheReferencePage) {
  EXPECT_EQ(run("config docs").output, config::config_reference_markdown());
}

TEST(Program, DoctorAnswersInTextAndJson) {
  const Outcome json = run("doctor --json");
  const Json report = parse_json(json.output, "doctor --json");
  EXPECT_EQ(report.at("ok"), json.code == 0) << json.output;
  EXPECT_TRUE(json.code == 0 || json.code == 3) << json.code;
  for (const Json& check : report.at("checks")) {
    EXPECT_EQ(check.at("ok") == false, check.contains("mend")) << check;
  }
  EXPECT_THAT(run("doctor").output, HasSubstr("shared memory"));
}

std::set<std::string> codes_in(const std::string& text) {
  const std::regex code("LS[0-9]{4}");
  return std::set<std::string>(std::sregex_token_iterator(text.begin(), text.end(), code), {});
}

// Every code that the sources use is explained in docs/errors.md, and none is explained that they do not use.
TEST(Docs, ErrorCodesAreListed) {
  std::set<std::string> used;
  for (const char* folder : {"/lockstep", "/apps"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(LOCKSTEP_SOURCE_DIR + std::string(folder))) {
      const std::string name = entry.path().filename();
      const bool source = name.ends_with(".cpp") || name.ends_with(".h");
      if (source && !name.ends_with("_test.cpp")) used.merge(codes_in(read_file(entry.path())));
    }
  }
  const std::set<std::string> listed = codes_in(read_file(LOCKSTEP_SOURCE_DIR "/docs/errors.md"));
  for (const std::string& code : used) EXPECT_TRUE(listed.contains(code)) << code << " is missing";
  for (const std::string& code : listed) EXPECT_TRUE(used.contains(code)) << code << " is not used";
}

// An exception of the runtime library arrives as the type it was thrown as.
TEST(Runtime, ErrorsCrossTheBoundary) {
  if (std::string(LOCKSTEP_TORCH_VERSION).empty()) {
    EXPECT_THROW(call_runtime({.verb = "no-such-verb"}), EnvironmentError);
    return;
  }
  EXPECT_THROW(call_runtime({.verb = "no-such-verb"}), InternalError);
}

TEST(ParseCommandLine, AnOptionalValueStandsBehindEquals) {
  const Verb verb{.name = "plan", .help = "", .usage = "", .flags = {{"fill", "[=FILE]", ""}}, .takes_config = true};
  const CommandLine bare = parse_command_line(verb, {"--fill", "run.toml"});
  EXPECT_EQ(bare.value("fill", "none"), "");
  EXPECT_EQ(bare.arguments, std::vector<std::string>{"run.toml"});
  EXPECT_EQ(parse_command_line(verb, {"--fill=out.toml"}).value("fill"), "out.toml");
}

}  // namespace
}  // namespace lockstep::apps
