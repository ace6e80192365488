#include "lockstep/base/random.h"

#include <cmath>
#include <numbers>

#include "lockstep/base/hash.h"

namespace lockstep {
namespace {

constexpr float kUnit = 1.0f / 16777216.0f;  // 2^-24: a float in [0, 1) has 24 random bits

float to_unit(uint32_t bits) { return static_cast<float>(bits >> 8) * kUnit; }

// Four normal values from one block: two Box-Muller pairs. 1 - u is in (0, 1], so the logarithm is finite.
std::array<float, 4> normals(const PhiloxBlock& block) {
  std::array<float, 4> values;
  for (int pair = 0; pair < 2; ++pair) {
    const float radius = std::sqrt(-2.0f * std::log(1.0f - to_unit(block[2 * pair])));
    const float angle = 2.0f * std::numbers::pi_v<float> * to_unit(block[2 * pair + 1]);
    values[2 * pair] = radius * std::cos(angle);
    values[2 * pair + 1] = radius * std::sin(angle);
  }
  return values;
}

std::array<float, 4> uniforms(const PhiloxBlock& block) {
  return {to_unit(block[0]), to_unit(block[1]), to_unit(block[2]), to_unit(block[3])};
}

// Element i of the stream is lane i % 4 of block i / 4.
template <typename BlockAt, typename Transform>
void fill(uint64_t first, std::span<float> out, BlockAt block_at, Transform transform) {
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t index = first + done;
    const auto values = transform(block_at(index / 4));
    for (uint64_t lane = index % 4; lane < 4 && done < out.size(); ++lane) out[done++] = values[lane];
  }
}

}  // namespace

PhiloxBlock philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

RandomStream::RandomStream(uint64_t seed, std::string_view name)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, name_(hash64(name)) {}

PhiloxBlock RandomStream::block(uint64_t index) const {
  return philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(name_),
                     static_cast<uint32_t>(name_ >> 32)},
                    key_);
}

void RandomStream::normal(uint64_t first, std::span<float> out) const {
  fill(first, out, [this](uint64_t index) { return block(index); }, normals);
}

void RandomStream::uniform(uint64_t first, std::span<float> out) const {
  fill(first, out, [this](uint64_t index) { return block(index); }, uniforms);
}

uint64_t RandomStream::bits(uint64_t index) const {
  const PhiloxBlock value = block(index / 2);
  const size_t lane = 2 * (index % 2);
  return uint64_t{value[lane]} | uint64_t{value[lane + 1]} << 32;
}

}  // namespace lockstep
