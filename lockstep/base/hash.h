// xxh3 of bytes: checksums of files and names of random streams.
#pragma once

#include <cstdint>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

uint64_t hash64(std::string_view bytes);
uint64_t hash64(const void* data, size_t size);

// The same hash of bytes that come piece by piece.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  void update(const void* data, size_t size);
  uint64_t hash() const;  // of what has come so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 16 lower-case hexadecimal digits.
std::string hash_text(uint64_t hash);

}  // namespace lockstep
