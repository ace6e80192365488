#include "lockstep/launch/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::launch {
namespace {

[[noreturn]] void fail(const std::string& what, int error) {
  throw EnvironmentError({.code = "LS3110",
                          .what = cat("shared memory: ", what, ": ", std::strerror(error)),
                          .way_out = "see the limits of this shell with 'ulimit -a'"});
}

std::byte* map(int64_t bytes, int flags, int descriptor) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (data == MAP_FAILED) fail(cat("mapping ", format_bytes(static_cast<double>(bytes))), errno);
  return static_cast<std::byte*>(data);
}

}  // namespace

SharedRegion SharedRegion::anonymous(int64_t bytes) {
  return {map(bytes, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1), bytes, -1};
}

SharedRegion SharedRegion::memfd(int64_t bytes) {
  const int descriptor = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) fail("memfd_create", errno);
  // Sealed against resizing: a process that maps it can never be ended by SIGBUS.
  if (ftruncate(descriptor, bytes) != 0 ||
      fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    close(descriptor);
    fail(cat("a region of ", format_bytes(static_cast<double>(bytes))), error);
  }
  return from_descriptor(descriptor);
}

SharedRegion SharedRegion::from_descriptor(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) fail(cat("descriptor ", descriptor, " was not inherited"), errno);
  if (!S_ISREG(status.st_mode) || status.st_size == 0) fail(cat("descriptor ", descriptor, " is no region"), EINVAL);
  return {map(status.st_size, MAP_SHARED | MAP_NORESERVE, descriptor), status.st_size, descriptor};
}

SharedRegion::SharedRegion(SharedRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

SharedRegion::~SharedRegion() {
  if (data_) munmap(data_, static_cast<size_t>(size_));
  if (descriptor_ >= 0) close(descriptor_);
}

int64_t ring_bytes(int world_size) {
  const int64_t pairs = static_cast<int64_t>(world_size) * world_size;
  int64_t bytes = kMiB;
  while (bytes > 64 * kKiB && bytes * pairs > 256 * kMiB) bytes /= 2;
  return bytes;
}

int64_t region_bytes(int world_size) {
  const int64_t pairs = static_cast<int64_t>(world_size) * world_size;
  return kMiB + 32 * pairs * (ring_bytes(world_size) + 4 * kKiB);
}

}  // namespace lockstep::launch
