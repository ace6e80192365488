// A buffer for kernels with an inaccessible page right behind its last byte or right before its first: what reads or writes
// beyond it is told by launch(), with the buffer's name and the byte. On the other side of the buffer, up to the end of
// its pages, bytes are watched: damage().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace lockstep::emulation {

class Guarded {
 public:
  enum Side { kBehind, kBefore };
  struct Options {
    Side side = kBehind;
    size_t away = 0;  // bytes between the buffer and the inaccessible page, for an address that is not aligned
  };

  Guarded(std::string name, size_t bytes, Options options);
  ~Guarded();
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  void make_read_only();

  // "byte -3 of `x` was written": what lies around the buffer is not what it was; empty: nothing.
  std::string damage() const;
  // "byte 404 of `x`, which has 400" for an address in any buffer's pages, of those that this thread of the host made;
  // empty: in none.
  static std::string whose(uintptr_t address);

 private:
  std::string at(std::ptrdiff_t offset) const;

  std::string name_;
  std::byte* pages_;
  size_t total_;
  std::byte* data_;
  size_t size_;
  Guarded* next_;
};

}  // namespace lockstep::emulation
