// Memory that the ranks of one host share. It has no name in the file system: when the last process that maps it ends,
// however it ends, it is gone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::launch {

// Zero-filled; pages take memory only once they are touched, so a generous size costs nothing. Owns its mapping and its
// descriptor. Every failure is an EnvironmentError LS3110 with what the system said.
class SharedRegion {
 public:
  static SharedRegion anonymous(int64_t bytes);  // for threads of this process and children forked from it
  static SharedRegion memfd(int64_t bytes);      // for processes that inherit descriptor(); closed on exec otherwise
  static SharedRegion from_descriptor(int descriptor);  // maps what a parent made; takes the descriptor over

  SharedRegion(SharedRegion&& other) noexcept;
  SharedRegion& operator=(SharedRegion&&) = delete;
  ~SharedRegion();

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  int descriptor() const { return descriptor_; }  // -1: anonymous

 private:
  SharedRegion(std::byte* data, int64_t size, int descriptor) : data_(data), size_(size), descriptor_(descriptor) {}
  std::byte* data_;
  int64_t size_;
  int descriptor_;
};

// One ring of bytes leads from each rank to each other in every group: their size, smaller in a large world, and the
// size of a region with room for the rings of about 32 groups of all ranks.
int64_t ring_bytes(int world_size);
int64_t region_bytes(int world_size);

}  // namespace lockstep::launch
