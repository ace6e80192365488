#include "lockstep/train/same_job.h"

#include <ATen/Version.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/host.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/exchange.h"
#include "lockstep/config/fields.h"
#include "lockstep/data/token_file.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxDifferences = 8;
constexpr size_t kMaxValues = 4;   // of one difference
constexpr size_t kMaxValue = 120;  // characters of one that are shown
constexpr int64_t kSamples = 64;
constexpr int64_t kSample = 4096;  // bytes

// Whose bytes say all there is about a run: read from end to end. Tokens and weights are as large as disks.
bool is_read_whole(const fs::path& file) {
  constexpr std::array<std::string_view, 6> kEndings = {".idx", ".json", ".jinja", ".txt", ".csv", ".toml"};
  return std::find(kEndings.begin(), kEndings.end(), file.extension().string()) != kEndings.end();
}

// Size and hash, or why there are none.
std::string identity_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "no such file, or it cannot be read";
  const int64_t size = file.tellg();
  const bool whole = is_read_whole(path) || size <= kSamples * kSample;
  const int64_t block = whole ? int64_t{1} << 20 : kSample;
  const int64_t blocks = whole ? (size + block - 1) / block : kSamples;
  const int64_t stride = whole ? block : (size - kSample) / (kSamples - 1);
  Hasher hasher;
  std::vector<char> bytes(static_cast<size_t>(block));
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t at = whole || i + 1 < blocks ? i * stride : size - kSample;  // the end is a sample
    const int64_t count = std::min(block, size - at);
    file.seekg(at);
    if (!file.read(bytes.data(), count)) return cat(size, " bytes that cannot be read");
    hasher.update(bytes.data(), static_cast<size_t>(count));
  }
  return cat(size, " bytes, xxh3 ", whole ? "" : "of samples ", hash_text(hasher.hash()));
}

bool is_of_a_model(const fs::path& file) {
  constexpr std::array<std::string_view, 5> kEndings = {".json", ".jinja", ".txt", ".model", ".safetensors"};
  return std::find(kEndings.begin(), kEndings.end(), file.extension().string()) != kEndings.end();
}

void append(std::vector<Fact>& to, const std::vector<Fact>& more) { to.insert(to.end(), more.begin(), more.end()); }

void add_token_files(const std::string& name, const std::string& prefix, std::vector<Fact>& facts) {
  for (const fs::path& path : {data::bin_path(prefix), data::idx_path(prefix)})
    facts.push_back({.name = cat(name, ": ", path.extension().string()), .value = identity_of(path), .origin = path.string()});
}

// Without the "hf:" before it.
fs::path path_in(const std::string& value) {
  constexpr std::string_view kPrefix = "hf:";
  return value.starts_with(kPrefix) ? value.substr(kPrefix.size()) : value;
}

// What a rank says: its host, and the facts as [name, value, origin].
std::string written(const std::vector<Fact>& facts) {
  Json json = {{"host", host_name()}, {"facts", Json::array()}};
  for (const Fact& fact : facts) json["facts"].push_back({fact.name, fact.value, fact.origin});
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

struct Told {
  std::string host;
  std::vector<Fact> facts;
};

std::vector<Told> read_all(const std::vector<std::string>& texts) {
  std::vector<Told> all;
  for (const std::string& text : texts) {
    const Json json = Json::parse(text);
    Told told{.host = json.at("host"), .facts = {}};
    for (const Json& fact : json.at("facts")) told.facts.push_back({fact.at(0), fact.at(1), fact.at(2)});
    all.push_back(std::move(told));
  }
  return all;
}

std::string shown(const std::string& value) {
  if (value.empty()) return "not set";
  return value.size() <= kMaxValue ? value : value.substr(0, kMaxValue) + "...";
}

// Who has this value, and where the first of them has it from.
struct Holders {
  std::vector<int> ranks;
  std::string origin;
};

std::string values_text(const std::map<std::string, Holders>& values, const std::vector<Told>& all) {
  std::vector<const std::pair<const std::string, Holders>*> order;
  for (const auto& entry : values) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->second.ranks[0] < b->second.ranks[0]; });
  std::vector<std::string> parts;
  for (const auto* entry : order) {
    const auto& [ranks, origin] = entry->second;
    const std::string host = cat("on ", all[static_cast<size_t>(ranks[0])].host);
    parts.push_back(cat(shown(entry->first), " on ", comm::ranks_text(ranks), " (", origin.empty() ? "" : origin + ", ", host, ")"));
    if (parts.size() == kMaxValues && order.size() > kMaxValues) {
      parts.push_back(cat("and ", order.size() - kMaxValues, " more values"));
      break;
    }
  }
  return join(parts, "; ");
}

std::vector<std::string> differences(const std::vector<Told>& all) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  std::map<std::string, std::map<std::string, Holders>> values;  // by name and value
  for (size_t rank = 0; rank < all.size(); ++rank)
    for (const Fact& fact : all[rank].facts) {
      if (seen.insert(fact.name).second) names.push_back(fact.name);
      Holders& holders = values[fact.name].try_emplace(fact.value, Holders{.ranks = {}, .origin = fact.origin}).first->second;
      holders.ranks.push_back(static_cast<int>(rank));
    }
  std::vector<std::string> found;
  for (const std::string& name : names) {
    auto& held = values[name];
    std::set<int> tell;
    for (const auto& [value, holders] : held) tell.insert(holders.ranks.begin(), holders.ranks.end());
    for (int rank = 0; rank < static_cast<int>(all.size()); ++rank)
      if (!tell.contains(rank)) held[""].ranks.push_back(rank);  // this rank knows no such thing
    for (auto& [value, holders] : held) std::sort(holders.ranks.begin(), holders.ranks.end());
    if (held.size() > 1) found.push_back(cat("  ", name, ": ", values_text(held, all)));
  }
  return found;
}

}  // namespace

std::vector<Fact> content_facts(const std::string& name, const fs::path& path) {
  std::error_code problem;
  if (!fs::is_directory(path, problem)) return {{.name = name, .value = identity_of(path), .origin = path.string()}};
  std::vector<Fact> facts;
  for (const auto& entry : fs::directory_iterator(path, problem))
    if (is_of_a_model(entry.path()))
      facts.push_back({.name = cat(name, ": ", entry.path().filename().string()),
                       .value = identity_of(entry.path()),
                       .origin = entry.path().string()});
  std::sort(facts.begin(), facts.end(), [](const Fact& a, const Fact& b) { return a.name < b.name; });
  return facts;
}

std::vector<Fact> config_facts(const config::LoadedConfig& loaded) {
  std::vector<Fact> facts;
  for (const config::Section& section : config::sections())
    for (const config::Field& field : section.fields) {
      if (!field.may_differ.empty()) continue;
      const auto origin = loaded.origin.find(field.key());
      facts.push_back({.name = field.key(),
                       .value = field.print(loaded.config),
                       .origin = origin == loaded.origin.end() ? "default" : origin->second});
    }
  const config::RunConfig& config = loaded.config;
  for (const auto& [name, prefix] : {std::pair{"data.train", config.data.train}, {"data.validation", config.data.validation}})
    if (!prefix.empty()) add_token_files(name, prefix, facts);
  for (const auto& [name, value] : {std::pair{"data.tokenizer", config.data.tokenizer}, {"model.from", config.model.from}})
    if (!value.empty()) append(facts, content_facts(name, path_in(value)));
  const config::PipelineSchedule& schedule = config.parallel.schedule;
  if (schedule.kind == config::ScheduleKind::kFile) append(facts, content_facts("parallel.schedule: file", schedule.file));
  return facts;
}

std::vector<Fact> version_facts(const std::string& lockstep) {
  // The headers' TORCH_VERSION would be that of the build.
  const std::string build = at::show_config(), key = "TORCH_VERSION=";
  const size_t at = build.find(key);
  const std::string torch = at == std::string::npos ? "unknown" : build.substr(at + key.size(), build.find_first_of(", \n", at) - at - key.size());
  return {{.name = "version of Lockstep", .value = lockstep}, {.name = "version of LibTorch", .value = torch}};
}

void require_same_job(comm::World& world, const std::vector<Fact>& facts) {
  if (world.size() == 1) return;
  const auto group = world.all_ranks("job");
  Hasher hasher;
  for (const Fact& fact : facts)
    for (const std::string& text : {fact.name, fact.value}) hasher.update(text.c_str(), text.size() + 1);
  const auto hash = static_cast<int64_t>(hasher.hash());
  const auto hashes = comm::gather_numbers(*group, program::call_id(program::Purpose::kJobFacts), {hash});
  const bool same = std::all_of(hashes.begin(), hashes.end(), [&](const auto& other) { return other[0] == hash; });
  std::vector<std::string> found;
  if (!same) found = differences(read_all(comm::gather_texts(*group, program::call_id(program::Purpose::kJobWords), written(facts))));
  group->barrier({.id = program::call_id(program::Purpose::kJobMet)}).wait();  // nobody leaves while another still reads
  if (same) return;
  const size_t more = found.size() - std::min(found.size(), kMaxDifferences);
  found.resize(found.size() - more);
  if (more > 0) found.push_back(cat("  and ", more, " more"));
  throw ConfigError({.code = "LS1103",
                     .what = cat("the ranks of this job were started with different values\n", join(found, "\n")),
                     .way_out = "start all ranks with the same command line, configuration, data and build"});
}

}  // namespace lockstep::train
