// A buffer cut into chunks by mesh::shard_range.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/comm/algorithms.h"
#include "lockstep/mesh/placement.h"

namespace lockstep::comm {

using Bytes = std::span<std::byte>;

class Chunks {
 public:
  Chunks(const Elements& buffer, int parts) : buffer_(buffer), parts_(parts) {}
  Bytes operator[](int chunk) const { return window(chunk, 1); }
  // `count` chunks from `first` on: they lie side by side.
  Bytes window(int first, int count) const {
    const int64_t begin = mesh::shard_range(buffer_.numel, parts_, first).begin;
    const int64_t end = mesh::shard_range(buffer_.numel, parts_, first + count - 1).end;
    return {buffer_.data + static_cast<size_t>(begin) * buffer_.size, static_cast<size_t>(end - begin) * buffer_.size};
  }

 private:
  const Elements& buffer_;
  int parts_;
};

}  // namespace lockstep::comm
