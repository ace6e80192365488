#include "lockstep/train/lock_holder.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/host.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

constexpr size_t kBytes = 1024;  // of a lock's file: written in one call, so that nobody reads half of it

std::string first_line(const std::string& path) {
  std::ifstream stream(path);
  std::string line;
  std::getline(stream, line);
  return line;
}

// Field 22 of /proc/PID/stat; nothing where the process has ended, also where nobody has fetched its exit code.
std::optional<int64_t> start_of(int64_t pid) {
  const std::string line = first_line(cat("/proc/", pid, "/stat"));
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields = split(line.substr(name_end + 2), ' ');  // from field 3 on
  if (fields.size() < 20 || fields[0] == "Z" || fields[0] == "X") return std::nullopt;
  return std::stoll(fields[19]);
}

}  // namespace

LockHolder LockHolder::of(int64_t pid) {
  std::error_code ignored;
  return {.host = host_name(),
          .pid = pid,
          .started = start_of(pid).value_or(0),
          .boot = first_line("/proc/sys/kernel/random/boot_id"),
          .pid_space = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string()};
}

LockHolder LockHolder::self() { return of(::getpid()); }

std::string LockHolder::words() const { return cat("process ", pid, " on ", host); }

std::string LockContent::text() const {
  const OrderedJson json = {{"host", holder.host}, {"pid", holder.pid}, {"process_started", holder.started},
                            {"boot", holder.boot}, {"pid_space", holder.pid_space}, {"beats", beats},
                            {"released", released}};
  std::string text = json.dump();
  text.resize(kBytes - 1, ' ');
  return text + "\n";
}

std::optional<LockContent> LockContent::parse(const std::string& text) {
  LockContent content;
  try {
    const Json json = parse_json(text, "lock");
    json.at("host").get_to(content.holder.host);
    json.at("pid").get_to(content.holder.pid);
    json.at("process_started").get_to(content.holder.started);
    json.at("boot").get_to(content.holder.boot);
    json.at("pid_space").get_to(content.holder.pid_space);
    json.at("beats").get_to(content.beats);
    json.at("released").get_to(content.released);
  } catch (const Error&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
  return content;
}

}  // namespace lockstep::train
