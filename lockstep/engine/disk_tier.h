// Regions of a file that hold what neither device nor host has room for (Rajbhandari et al. 2021, ZeRO-Infinity).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/descriptor.h"

namespace lockstep::engine {

struct DiskRegion {
  std::string name;  // "blocks.3 optimizer"
  int64_t bytes = 0;
};

// One file per rank and run. It has no name once it is made: however the process ends, its space is free again. Regions
// begin on pages. Calls for different regions may run at the same time.
class DiskTier {
 public:
  // Makes `folder` where it is missing and takes all the space there at once: a disk that is too small is found here.
  // OutOfMemoryError LS4011 with the bytes needed and free; EnvironmentError LS4012 where the system refuses.
  DiskTier(const std::filesystem::path& folder, int rank, std::vector<DiskRegion> regions);

  // The whole region. LS4011 and LS4012 as above, where a write falls short or fails.
  void write(size_t region, const void* from);
  // What was written last. EnvironmentError LS4013 where the bytes are not those (their checksum differs) or the file
  // ends too early.
  void read(size_t region, void* to) const;

  // The region as memory, for checkpoints: reads and writes of it are those of the file. Checked first, as in read. It may
  // outlive the tier.
  std::shared_ptr<void> map(size_t region) const;
  // After writes through mappings: what is there now is what was written last, of all regions.
  void accept();

  bool written(size_t region) const { return places_.at(region).written; }
  int64_t bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }  // as messages name it
  int descriptor() const { return file_.get(); }               // for tests, which damage the file

 private:
  struct Place {
    DiskRegion region;
    int64_t offset = 0;
    uint64_t checksum = 0;
    bool written = false;
  };
  std::string where(const Place& place) const;
  void read_from(const Place& place, int64_t offset, char* to, int64_t bytes) const;
  uint64_t checksum(const Place& place) const;  // of what the file holds
  [[noreturn]] void damaged(const Place& place, const std::string& how) const;
  void compare(const Place& place, uint64_t found) const;

  std::filesystem::path path_;
  Descriptor file_{-1};
  std::vector<Place> places_;
  int64_t bytes_ = 0;
};

}  // namespace lockstep::engine
