// Counter-based random numbers: value i of a stream is a pure function of (seed, stream name, i), so every layout draws
// the same initial values and dropout masks whoever holds the element.
// Philox4x32-10 of Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "lockstep/base/philox.h"

namespace lockstep {

using PhiloxBlock = std::array<uint32_t, 4>;

// The raw generator: 128 random bits for a 128-bit counter and a 64-bit key.
PhiloxBlock philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key);

// A stream of numbers, named by what it is for ("init/blocks.3.mlp.up.weight", "dropout/step 7/blocks.3.residual").
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name);

  // Elements [first, first + out.size()) of the stream; any split of a range gives the same values.
  void normal(uint64_t first, std::span<float> out) const;   // mean 0, standard deviation 1 (Box-Muller)
  void uniform(uint64_t first, std::span<float> out) const;  // [0, 1)
  // Element `index` as 64 random bits.
  uint64_t bits(uint64_t index) const;

 private:
  PhiloxStream stream_;
};

}  // namespace lockstep
