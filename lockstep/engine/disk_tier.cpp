#include "lockstep/engine/disk_tier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "lockstep/base/check.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/units.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kPage = 4096;
constexpr const char* kResume = "the last checkpoint is good: start again to resume";

std::string text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

bool is_full(int code) { return code == ENOSPC || code == EDQUOT || code == EFBIG; }

std::string free_space(const std::filesystem::path& folder) {
  struct statvfs found{};
  if (::statvfs(folder.c_str(), &found) != 0) return "its free space is not known";
  return cat(text(static_cast<int64_t>(found.f_bavail) * static_cast<int64_t>(found.f_frsize)), " are free");
}

[[noreturn]] void throw_full(const std::string& what, const std::filesystem::path& folder, int code, const char* way_out) {
  throw OutOfMemoryError({.code = "LS4011",
                          .what = cat(what, ": ", std::strerror(code), "; in ", folder.string(), " ", free_space(folder)),
                          .where = "memory.disk_path",
                          .way_out = way_out});
}

[[noreturn]] void throw_refused(const std::string& what, int code, const char* way_out) {
  throw EnvironmentError({.code = "LS4012",
                          .what = cat(what, ": ", std::strerror(code)),
                          .where = "memory.disk_path",
                          .way_out = way_out});
}

// The file is unlinked at once: nobody else opens it, and it never outlives the process.
Descriptor make_file(std::filesystem::path& path) {
  std::string name = path.string();
  Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
  const int code = errno;
  if (!file.open())
    throw_refused(cat("cannot make a file in ", path.parent_path().string()), code, "name a folder that can be written");
  ::unlink(name.c_str());
  path = name;
  return file;
}

}  // namespace

DiskTier::DiskTier(const std::filesystem::path& folder, int rank, std::vector<DiskRegion> regions)
    : path_(folder / cat("lockstep-offload-rank", rank, "-XXXXXX")) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem)
    throw_refused(cat("cannot make the folder ", folder.string()), problem.value(), "name one that can be written");
  for (DiskRegion& region : regions) {
    const int64_t offset = bytes_;
    bytes_ += (region.bytes + kPage - 1) / kPage * kPage;
    places_.push_back({.region = std::move(region), .offset = offset});
  }
  file_ = make_file(path_);
  if (bytes_ == 0) return;
  int code = EINTR;
  while (code == EINTR) code = ::posix_fallocate(file_.get(), 0, bytes_);
  if (code == 0) return;
  const std::string what = cat("the disk takes ", text(bytes_), " of what this rank offloads, and has not got them");
  if (is_full(code))
    throw_full(what, folder, code, "free some space, name another memory.disk_path, or raise memory.host_limit");
  throw_refused(cat("cannot reserve ", text(bytes_), " in ", path_.string()), code, "name another memory.disk_path");
}

std::string DiskTier::where(const Place& place) const {
  return cat(place.region.name, " (", text(place.region.bytes), " at byte ", place.offset, " of ", path_.string(), ")");
}

void DiskTier::write(size_t region, const void* from) {
  Place& place = places_.at(region);
  const auto* bytes = static_cast<const char*>(from);
  place.written = false;
  for (int64_t done = 0; done < place.region.bytes;) {
    const ssize_t written =
        ::pwrite(file_.get(), bytes + done, static_cast<size_t>(place.region.bytes - done), place.offset + done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int code = written == 0 ? ENOSPC : errno;
      const std::string what = cat("cannot write ", where(place), " beyond byte ", done);
      if (is_full(code)) throw_full(what, path_.parent_path(), code, "free some space; the last checkpoint is good: start again to resume");
      throw_refused(what, code, kResume);
    }
    done += written;
  }
  place.checksum = hash64(from, static_cast<size_t>(place.region.bytes));
  place.written = true;
}

void DiskTier::damaged(const Place& place, const std::string& how) const {
  throw EnvironmentError({.code = "LS4013",
                          .what = cat("the offload file is damaged: ", where(place), " ", how),
                          .where = "memory.disk_path",
                          .way_out = cat("check that disk; ", kResume)});
}

void DiskTier::compare(const Place& place, uint64_t found) const {
  if (found != place.checksum)
    damaged(place, cat("has the checksum ", hash_text(found), ", written was ", hash_text(place.checksum)));
}

void DiskTier::read_from(const Place& place, int64_t offset, char* to, int64_t bytes) const {
  for (int64_t done = 0; done < bytes;) {
    const ssize_t got =
        ::pread(file_.get(), to + done, static_cast<size_t>(bytes - done), place.offset + offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_refused(cat("cannot read ", where(place)), errno, kResume);
    if (got == 0) damaged(place, cat("ends after ", offset + done, " bytes"));
    done += got;
  }
}

void DiskTier::read(size_t region, void* to) const {
  const Place& place = places_.at(region);
  LOCKSTEP_CHECK(place.written, "read before it was written: ", where(place));
  read_from(place, 0, static_cast<char*>(to), place.region.bytes);
  compare(place, hash64(to, static_cast<size_t>(place.region.bytes)));
}

uint64_t DiskTier::checksum(const Place& place) const {
  std::vector<char> piece(1 << 20);
  Hasher hasher;
  for (int64_t offset = 0; offset < place.region.bytes;) {
    const int64_t bytes = std::min<int64_t>(static_cast<int64_t>(piece.size()), place.region.bytes - offset);
    read_from(place, offset, piece.data(), bytes);
    hasher.update(piece.data(), static_cast<size_t>(bytes));
    offset += bytes;
  }
  return hasher.hash();
}

// Checked with reads: a mapping of a file that is too short would end the process.
std::shared_ptr<void> DiskTier::map(size_t region) const {
  const Place& place = places_.at(region);
  LOCKSTEP_CHECK(place.written, "mapped before it was written: ", where(place));
  compare(place, checksum(place));
  const auto bytes = static_cast<size_t>(place.region.bytes);
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), place.offset);
  if (data == MAP_FAILED) throw_refused(cat("cannot map ", where(place)), errno, kResume);
  return {data, [bytes](void* mapped) { ::munmap(mapped, bytes); }};
}

void DiskTier::accept() {
  for (Place& place : places_) {
    place.checksum = checksum(place);
    place.written = true;
  }
}

}  // namespace lockstep::engine
