#include "apps/lockstep/runtime/job_facts.h"

#include <map>

namespace lockstep::apps {

std::vector<train::Fact> job_facts(const CommandLine& command_line, const std::vector<train::Fact>& more) {
  std::vector<train::Fact> facts = {{.name = "verb", .value = command_line.verb}};
  std::map<std::string, std::string> flags;  // written several times: all values, in order
  for (const auto& [name, value] : command_line.common_flags) {
    std::string& all = flags["--" + name];
    all += (all.empty() ? "" : ", ") + (value.empty() ? "given" : value);
  }
  for (const auto& [name, value] : flags) facts.push_back({.name = name, .value = value});
  facts.insert(facts.end(), more.begin(), more.end());
  const std::vector<train::Fact> versions = train::version_facts(LOCKSTEP_VERSION);
  facts.insert(facts.end(), versions.begin(), versions.end());
  return facts;
}

}  // namespace lockstep::apps
