#include "lockstep/checkpoint/publish.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/directory.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& from, const fs::path& to, int code) {
  throw EnvironmentError(
      {.code = "LS3101", .what = cat("cannot rename ", from.string(), " to ", to.string(), ": ", std::strerror(code))});
}

// Of the kernel and not of the C library: file systems without it (NFS, some FUSE) and old kernels say so.
bool lacks_exchange(int code) {
  return code == EINVAL || code == ENOSYS || code == EOPNOTSUPP || code == EPERM;
}

class Publisher {
 public:
  explicit Publisher(const PublishOptions& options) : options_(options) {}

  void publish(const fs::path& temporary, const fs::path& place) {
    if (!exists(place)) {
      rename(temporary, place);
      return sync(place.parent_path());
    }
    if (exchange(temporary, place)) {
      sync(place.parent_path());
      return remove(temporary);
    }
    const fs::path beside = place.string() + kNewSuffix;
    rename(temporary, beside);
    sync(place.parent_path());
    take_place(beside, place);
  }

  // The step beside it is whole: the old one may go.
  void take_place(const fs::path& beside, const fs::path& place) {
    const fs::path replaced = place.parent_path() / cat(kTemporaryPrefix, "replaced-", place.filename().string());
    if (exists(replaced)) remove(replaced);
    if (exists(place)) rename(place, replaced);
    rename(beside, place);
    sync(place.parent_path());
    if (exists(replaced)) remove(replaced);
  }

  void remove(const fs::path& folder) {
    before("remove");
    fs::remove_all(folder);
  }
  void rename(const fs::path& from, const fs::path& to) {
    before("rename");
    if (::rename(from.c_str(), to.c_str()) != 0) fail(from, to, errno);
  }

 private:
  static bool exists(const fs::path& path) { return fs::exists(fs::symlink_status(path)); }
  void before(const char* call) const {
    if (options_.before) options_.before(call);
  }
  void sync(const fs::path& folder) {
    before("sync");
    sync_directory(folder);
  }
  bool exchange(const fs::path& from, const fs::path& to) {
    if (!options_.exchange) return false;
    before("exchange");
    if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return true;
    if (!lacks_exchange(errno)) fail(from, to, errno);
    return false;
  }

  const PublishOptions& options_;
};

bool is_whole(const fs::path& step) {
  try {
    read_manifest(step);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Versions before this one renamed the old step away, then the new one to its place: both are whole, and neither has the name.
void repair_renamed(const fs::path& directory, Publisher& publisher) {
  constexpr std::string_view kReplaced = "replaced-";
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(directory, missing)) {
    const std::string name = entry.path().filename().string(), start = cat(kTemporaryPrefix, kReplaced);
    if (name.starts_with(start) && parse_step_name(name.substr(start.size()))) names.push_back(name.substr(start.size()));
  }
  for (const std::string& name : names) {
    const fs::path fresh = directory / cat(kTemporaryPrefix, name), old = directory / cat(kTemporaryPrefix, kReplaced, name);
    if (fs::exists(directory / name)) continue;
    if (is_whole(fresh)) {
      publisher.rename(fresh, directory / name);
    } else if (is_whole(old)) {
      publisher.rename(old, directory / name);
    }
  }
}

}  // namespace

void publish_step(const fs::path& temporary, const fs::path& place, const PublishOptions& options) {
  Publisher(options).publish(temporary, place);
}

void repair_steps(const fs::path& directory, const PublishOptions& options) {
  Publisher publisher(options);
  std::vector<fs::path> beside;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(directory, missing)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kNewSuffix) && parse_step_name(name)) beside.push_back(entry.path());
  }
  for (const fs::path& path : beside) {
    fs::path place = path;
    place.replace_extension();
    // It was whole when it got its name. Where it is damaged since and the old one is not, the old one stays.
    is_whole(path) || !is_whole(place) ? publisher.take_place(path, place) : publisher.remove(path);
  }
  repair_renamed(directory, publisher);
}

std::string point_latest(const fs::path& directory, const std::string& name) {
  const fs::path link = directory / "latest", temporary = directory / cat(kTemporaryPrefix, "latest");
  std::error_code code;
  const fs::file_status there = fs::symlink_status(link, code);
  if (fs::exists(there) && !fs::is_symlink(there))
    return cat(link.string(), " is no link, perhaps copied without links: it is left as it is, and nothing reads it; ",
               "the newest step is ", name);
  fs::remove(temporary, code);
  fs::create_directory_symlink(name, temporary, code);
  if (!code) fs::rename(temporary, link, code);
  if (!code) return "";
  std::error_code ignored;
  fs::remove(temporary, ignored);
  return cat("cannot point ", link.string(), " at ", name, ": ", code.message(), "; nothing reads it");
}

}  // namespace lockstep::checkpoint
