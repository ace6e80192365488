#include "lockstep/base/random.h"

#include <cmath>
#include <numbers>

#include "lockstep/base/hash.h"

namespace lockstep {
namespace {

// Four normal values from one block: two Box-Muller pairs. 1 - u is in (0, 1], so the logarithm is finite.
std::array<float, 4> normals(const PhiloxLanes& block) {
  std::array<float, 4> values;
  for (int pair = 0; pair < 2; ++pair) {
    const float radius = std::sqrt(-2.0f * std::log(1.0f - unit_of(block.at[2 * pair])));
    const float angle = 2.0f * std::numbers::pi_v<float> * unit_of(block.at[2 * pair + 1]);
    values[2 * pair] = radius * std::cos(angle);
    values[2 * pair + 1] = radius * std::sin(angle);
  }
  return values;
}

std::array<float, 4> uniforms(const PhiloxLanes& block) {
  return {unit_of(block.at[0]), unit_of(block.at[1]), unit_of(block.at[2]), unit_of(block.at[3])};
}

template <typename Transform>
void fill(const PhiloxStream& stream, uint64_t first, std::span<float> out, Transform transform) {
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t index = first + done;
    const auto values = transform(stream.block(index / 4));
    for (uint64_t lane = index % 4; lane < 4 && done < out.size(); ++lane) out[done++] = values[lane];
  }
}

}  // namespace

PhiloxStream philox_stream(uint64_t seed, std::string_view name) { return {.seed = seed, .name = hash64(name)}; }

PhiloxBlock philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  const PhiloxLanes drawn = philox_rounds({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  return {drawn.at[0], drawn.at[1], drawn.at[2], drawn.at[3]};
}

RandomStream::RandomStream(uint64_t seed, std::string_view name) : stream_(philox_stream(seed, name)) {}

void RandomStream::normal(uint64_t first, std::span<float> out) const { fill(stream_, first, out, normals); }

void RandomStream::uniform(uint64_t first, std::span<float> out) const { fill(stream_, first, out, uniforms); }

uint64_t RandomStream::bits(uint64_t index) const {
  const PhiloxLanes drawn = stream_.block(index / 2);
  const size_t lane = 2 * (index % 2);
  return uint64_t{drawn.at[lane]} | uint64_t{drawn.at[lane + 1]} << 32;
}

}  // namespace lockstep
