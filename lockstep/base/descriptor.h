// A file descriptor that closes itself. Move-only; -1: none.
#pragma once

#include <unistd.h>

#include <utility>

namespace lockstep {

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (open()) close(value_);
  }
  bool open() const { return value_ >= 0; }
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }  // now the caller closes it

 private:
  int value_;
};

}  // namespace lockstep
