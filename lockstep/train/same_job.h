// One job: before the first step all ranks compare what they were told and what they read. Ranks that differ would train
// a mixture of two runs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/config/load.h"

namespace lockstep::train {

// Something that all ranks must have alike.
struct Fact {
  std::string name;      // "optimizer.lr", "data.train: .idx"
  std::string value;     // as text
  std::string origin{};  // where this rank has it from: "run.toml:12", a path; may differ
};

// Every field that may not differ (config::Field::may_differ); and of each file that the configuration names what it holds:
// token files, tokenizer, model directory, schedule.
std::vector<Fact> config_facts(const config::LoadedConfig& loaded);

// What lies at `path`, wherever that is: size and xxh3. Of a directory each file of a model or a checkpoint in it. Of
// large files (tokens, weights) 64 samples are hashed. A file that cannot be read is a fact, too.
std::vector<Fact> content_facts(const std::string& name, const std::filesystem::path& path);

// `lockstep`, and LibTorch as it is loaded.
std::vector<Fact> version_facts(const std::string& lockstep);

// Collective over the world; makes the same calls whatever the facts are. ConfigError LS1103 on every rank, in the same
// words, where the ranks' facts differ: name, values, who has which and from where. Nothing on a world of one.
void require_same_job(comm::World& world, const std::vector<Fact>& facts);

}  // namespace lockstep::train
