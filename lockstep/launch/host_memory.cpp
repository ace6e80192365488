#include "lockstep/launch/host_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;

// Files of the kernel have no size; one that is missing is empty.
std::string content(const fs::path& file) {
  std::ifstream stream(file);
  std::ostringstream text;
  if (stream) text << stream.rdbuf();
  return std::move(text).str();
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// "max" and what is no number: nothing.
std::optional<int64_t> number(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  return parse_number<int64_t>(text);
}

// Of lines "name number": that of `name`.
std::optional<int64_t> entry(const std::string& text, std::string_view name) {
  for (const std::string& line : split(text, '\n'))
    if (const auto words = words_of(line); words.size() >= 2 && words[0] == name) return number(words[1]);
  return std::nullopt;
}

// A path in mountinfo has its spaces as \040.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '\\' && i + 3 < text.size();
    plain += escape ? static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0')) : text[i];
    i += escape ? 3 : 0;
  }
  return plain;
}

struct Mount {
  std::string root, place;  // the cgroup that is seen at the folder
  bool v2 = false;
};

// "36 35 98:0 /root /place options - type source super,options"
std::optional<Mount> memory_mount(const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  const auto dash = std::find(words.begin(), words.end(), "-");
  if (words.size() < 6 || words.end() - dash < 4) return std::nullopt;
  const std::vector<std::string> options = split(dash[3], ',');
  const bool v2 = dash[1] == "cgroup2";
  const bool v1 = dash[1] == "cgroup" && std::find(options.begin(), options.end(), "memory") != options.end();
  if (!v1 && !v2) return std::nullopt;
  return Mount{.root = unescaped(words[3]), .place = unescaped(words[4]), .v2 = v2};
}

// "4:cpu,memory:/path" of v1, "0::/path" of v2.
std::string path_of_process(const std::string& cgroups, bool v2) {
  for (const std::string& line : split(cgroups, '\n')) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::vector<std::string> controllers = split(line.substr(first + 1, second - first - 1), ',');
    const bool memory = std::find(controllers.begin(), controllers.end(), "memory") != controllers.end();
    if (v2 ? second == first + 1 : memory) return line.substr(second + 1);
  }
  return "/";
}

// A cgroup that holds this process and counts memory.
struct Cgroup {
  fs::path folder;
  std::string name;
  bool v2 = false;
};

// In a container the mount shows a part of the tree, and the path may lie outside of it: then its top is what holds us.
std::string below(const std::string& path, const std::string& root) {
  if (root == "/") return path;
  return path.starts_with(root + "/") ? path.substr(root.size()) : "/";
}

// The innermost first.
std::vector<Cgroup> cgroups_of_process(const fs::path& root) {
  std::vector<Cgroup> all;
  const std::string cgroups = content(root / "proc/self/cgroup");
  for (const std::string& line : split(content(root / "proc/self/mountinfo"), '\n')) {
    const auto mount = memory_mount(line);
    if (!mount) continue;
    const fs::path place = root / fs::path(mount->place).relative_path();
    const fs::path path = fs::path(below(path_of_process(cgroups, mount->v2), mount->root)).lexically_normal();
    for (fs::path at = path;; at = at.parent_path()) {
      const fs::path folder = place / at.relative_path();
      std::error_code problem;
      if (fs::exists(folder / (mount->v2 ? "memory.current" : "memory.usage_in_bytes"), problem))
        all.push_back({.folder = folder, .name = at.string(), .v2 = mount->v2});
      if (at == at.parent_path()) break;
    }
  }
  return all;
}

// Pages of files go when others want theirs.
int64_t reclaimable(const Cgroup& cgroup) {
  const std::string stat = content(cgroup.folder / "memory.stat");
  int64_t bytes = 0;
  for (const char* name : {"inactive_file", "active_file", "slab_reclaimable"})
    bytes += entry(stat, cgroup.v2 ? name : cat("total_", name)).value_or(0);
  return bytes;
}

std::optional<HostMemory> left_of(const Cgroup& cgroup) {
  const auto limit = number(content(cgroup.folder / (cgroup.v2 ? "memory.max" : "memory.limit_in_bytes")));
  const auto usage = number(content(cgroup.folder / (cgroup.v2 ? "memory.current" : "memory.usage_in_bytes")));
  if (!limit || !usage) return std::nullopt;
  const int64_t used = std::max<int64_t>(0, *usage - reclaimable(cgroup));
  const auto text = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  return HostMemory{.available = std::max<int64_t>(0, *limit - used),
                    .source = cat("cgroup ", cgroup.name, ": limit ", text(*limit), ", ", text(used), " in use")};
}

std::string risen(const std::optional<int64_t>& before, const std::optional<int64_t>& after, const std::string& whose) {
  if (!before || !after || *after <= *before) return "";
  const int64_t count = *after - *before;
  return cat("the kernel ended ", count, count == 1 ? " process of " : " processes of ", whose,
             " because memory was short (oom_kill ", *before, " -> ", *after, ")");
}

}  // namespace

std::optional<HostMemory> host_memory(const fs::path& root) {
  std::optional<HostMemory> least;
  if (const auto kib = entry(content(root / "proc/meminfo"), "MemAvailable:"))
    least = {.available = *kib * kKiB, .source = "MemAvailable of /proc/meminfo"};
  for (const Cgroup& cgroup : cgroups_of_process(root))
    if (const auto left = left_of(cgroup); left && (!least || left->available < least->available)) least = left;
  return least;
}

MemoryKills memory_kills(const fs::path& root) {
  MemoryKills kills{.cgroup = std::nullopt, .host = entry(content(root / "proc/vmstat"), "oom_kill")};
  for (const Cgroup& cgroup : cgroups_of_process(root)) {
    const auto count = entry(content(cgroup.folder / (cgroup.v2 ? "memory.events" : "memory.oom_control")), "oom_kill");
    if (!count) continue;
    kills.cgroup = count;
    kills.cgroup_name = cgroup.name;
    break;
  }
  return kills;
}

std::string kills_text(const MemoryKills& before, const MemoryKills& after) {
  const std::string of_cgroup = risen(before.cgroup, after.cgroup, cat("cgroup ", after.cgroup_name));
  return of_cgroup.empty() ? risen(before.host, after.host, "this machine") : of_cgroup;
}

}  // namespace lockstep::launch
