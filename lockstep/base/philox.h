// The rounds of random.h's generator and the numbers made of its bits, as plain functions: random.cpp calls them on the
// host, kernels on the GPU. The same bits on both.
#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/host_device.h"

namespace lockstep {

// 128 bits: a counter, or what is drawn for it.
struct PhiloxLanes {
  uint32_t at[4];
};

LOCKSTEP_BOTH PhiloxLanes philox_rounds(PhiloxLanes counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter.at[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter.at[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.at[1] ^ key0, static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.at[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// A RandomStream by value.
struct PhiloxStream {
  uint64_t seed;
  uint64_t name;  // its hash

  // Element i of the stream is lane i % 4 of block i / 4.
  LOCKSTEP_BOTH PhiloxLanes block(uint64_t index) const {
    return philox_rounds({{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                           static_cast<uint32_t>(name), static_cast<uint32_t>(name >> 32)}},
                         static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }
};

PhiloxStream philox_stream(uint64_t seed, std::string_view name);

// In [0, 1): 24 of the bits, which a float holds exactly.
LOCKSTEP_BOTH float unit_of(uint32_t bits) { return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f); }

}  // namespace lockstep
