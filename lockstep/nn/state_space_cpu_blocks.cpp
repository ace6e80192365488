#include "lockstep/nn/state_space_cpu_blocks.h"

#include <algorithm>

#include "lockstep/nn/tile.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn::scan_cpu {
namespace {

using vec::Floats;
using vec::kLanes;

constexpr int64_t kHeadsOfPart = 8;

// e^power; below e^-40, which no sum in fp32 shows, zero: a product of two is then no subnormal number, with which processors are slow.
LOCKSTEP_INLINE Floats decay(const Floats& power) { return power < -40.0f ? Floats{} : vec::exp(power); }

// Ones up to a lane, or from one on: sixteen numbers of a table from the right place on. GCC 12 makes a comparison of integers lane by lane.
struct LaneMasks {
  constexpr LaneMasks() {
    for (int i = 0; i < 3 * kLanes; ++i) numbers[i] = i / kLanes == 1 ? 1.0f : 0.0f;
  }
  float numbers[3 * kLanes]{};  // zeros, ones, zeros
};
constexpr LaneMasks kLaneMasks;
LOCKSTEP_INLINE Floats up_to(int64_t lane) {
  Floats mask{};
  vec::load(kLaneMasks.numbers + 2 * kLanes - 1 - lane, kLanes, mask);
  return mask;
}
LOCKSTEP_INLINE Floats from(int64_t lane) {
  Floats mask{};
  vec::load(kLaneMasks.numbers + kLanes - std::min(lane, kLanes), kLanes, mask);
  return mask;
}

// Of the tokens of one tile [column] by those of the same or a later one: factor_of(row) is the decay, token rows [first, last) of the block.
template <typename FactorOf>
LOCKSTEP_INLINE void mask_rows(const float* scores, const Tokens& tokens, int64_t column, int64_t first, int64_t last, const FactorOf& factor_of,
                               float* masked, float* decay_to) {
  for (int64_t row = first; row < last; ++row) {
    Floats factor = factor_of(row), score{};
    if (tokens.begin[row] > column) factor *= from(tokens.begin[row] - column);
    vec::load(scores + row * kBlock + column, kLanes, score);
    vec::store(masked + row * kBlock + column, kLanes, score * factor);
    if (decay_to) vec::store(decay_to + row * kBlock + column, kLanes, factor);
  }
}

template <typename T>
LOCKSTEP_INLINE void pack_rows(const Rows<const T>& from, const Tokens& tokens, int64_t columns, const float* row_scale, float* to) {
  const int64_t width = padded(columns);
  for (int64_t row = 0; row < tokens.count; ++row) {
    const float scale = row_scale ? row_scale[row] : 1.0f;
    for (int64_t i = 0; i < width; i += kLanes) {
      Floats x{};
      vec::load(from.data + row * from.stride + i, columns - i, x);
      vec::store(to + row * width + i, kLanes, x * scale);
    }
  }
  std::fill(to + tokens.count * width, to + tokens.rows * width, 0.0f);
}

template <typename T>
LOCKSTEP_INLINE void put_rows(const float* from, const Tokens& tokens, int64_t columns, const Rows<T>& to) {
  for (int64_t row = 0; row < tokens.count; ++row) {
    for (int64_t i = 0; i < columns; i += kLanes) {
      Floats sum{};
      vec::load(from + row * padded(columns) + i, kLanes, sum);
      vec::store(to.data + row * to.stride + i, columns - i, sum);
    }
  }
}

template <typename T>
LOCKSTEP_INLINE void put_rows(const float* from, const Tokens& tokens, int64_t columns, float d, const Rows<const T>& x, const Rows<T>& to) {
  const int64_t width = padded(columns);
  for (int64_t row = 0; row < tokens.count; ++row) {
    for (int64_t i = 0; i < columns; i += kLanes) {
      Floats sum{}, own{};
      vec::load(from + row * width + i, kLanes, sum);
      vec::load(x.data + row * x.stride + i, columns - i, own);
      vec::store(to.data + row * to.stride + i, columns - i, sum + d * own);
    }
  }
}

}  // namespace

Sizes::Sizes(const Scan& scan)
    : batch(scan.x.size(0)),
      tokens(scan.x.size(1)),
      heads(scan.x.size(2)),
      groups(scan.b.size(2)),
      channels(scan.x.size(3)),
      numbers(scan.b.size(3)),
      p(padded(channels)),
      n(padded(numbers)),
      length(tokens / scan.pieces),
      chunk(std::min(scan.chunk, length)),
      chunks((length + chunk - 1) / chunk),
      block(std::min(chunk, kBlock)),
      pieces(scan.pieces) {}

Parts::Parts(const Sizes& sizes)
    : heads_(sizes.heads / sizes.groups),
      groups_(sizes.groups),
      pieces_(sizes.pieces),
      of_group_((heads_ + kHeadsOfPart - 1) / kHeadsOfPart),
      count_(sizes.batch * pieces_ * groups_ * of_group_) {}

Part Parts::operator[](int64_t i) const {
  const int64_t index = i % of_group_, first = heads_ * index / of_group_, group = i / of_group_ % groups_;
  const int64_t piece = i / of_group_ / groups_;
  return {.batch = piece / pieces_,
          .piece = piece % pieces_,
          .group = group,
          .index = index,
          .head = group * heads_ + first,
          .heads = heads_ * (index + 1) / of_group_ - first};
}

Tokens::Tokens(const Scan& scan, int64_t batch_index, int64_t first_token, int64_t tokens)
    : batch(batch_index), token(first_token), count(tokens), rows(padded(tokens)) {
  std::fill_n(begin, kBlock, -1);
  if (!scan.begins.defined()) return;
  const uint8_t* begins = scan.begins.const_data_ptr<uint8_t>() + batch * scan.x.size(1) + token;
  int32_t last = -1;
  for (int64_t t = 0; t < count; ++t) {
    if (begins[t]) last = static_cast<int32_t>(t);
    begin[t] = last;
  }
}

std::vector<Tokens> blocks_of(const Scan& scan, const Sizes& sizes, const Part& part, int64_t chunk) {
  std::vector<Tokens> blocks;
  const int64_t piece = part.piece * sizes.length, end = std::min((chunk + 1) * sizes.chunk, sizes.length);
  for (int64_t token = chunk * sizes.chunk; token < end; token += sizes.block)
    blocks.emplace_back(scan, part.batch, piece + token, std::min(sizes.block, end - token));
  return blocks;
}

LOCKSTEP_CLONES void decays_of(const float* delta, int64_t stride, float a, const Tokens& tokens, Decays& decays) {
  decays.power = 0;
  for (int64_t t = 0; t < kBlock; ++t) {
    decays.delta[t] = t < tokens.count ? delta[t * stride] : 0.0f;
    const float sum = (t % kUnit == 0 ? 0.0f : decays.sum[t - 1]) + a * decays.delta[t];
    decays.sum[t] = sum;
    if (t % kUnit != kUnit - 1) continue;
    decays.tile[t / kUnit] = sum;
    decays.power += sum;
  }
  float before = 0;
  for (int64_t t = 0; t < kBlock; t += kLanes) {
    float behind = 0;
    for (int64_t tile = t / kUnit + 1; tile < kBlock / kUnit; ++tile) behind += decays.tile[tile];
    Floats sums{};
    vec::load(decays.sum + t, kLanes, sums);
    vec::store(decays.in + t, kLanes, decay(before + sums));
    vec::store(decays.out + t, kLanes, decay((decays.tile[t / kUnit] - sums) + behind));
    before += decays.tile[t / kUnit];
  }
  int64_t first = 0;  // token that does not see the state before the block
  while (first < tokens.count && tokens.begin[first] < 0) ++first;
  std::fill(decays.in + first, decays.in + kBlock, 0.0f);
  std::fill(decays.out, decays.out + std::max(tokens.begin[tokens.count - 1], 0), 0.0f);
  std::fill(decays.out + tokens.count, decays.out + kBlock, 0.0f);
  decays.whole = tokens.ends_document() ? 0.0f : decay(vec::splat(decays.power))[0];
}

LOCKSTEP_CLONES void pack(const Rows<const float>& from, const Tokens& tokens, int64_t columns, const float* row_scale, float* to) {
  pack_rows(from, tokens, columns, row_scale, to);
}
LOCKSTEP_CLONES void pack(const Rows<const c10::BFloat16>& from, const Tokens& tokens, int64_t columns, const float* row_scale, float* to) {
  pack_rows(from, tokens, columns, row_scale, to);
}

LOCKSTEP_CLONES void scale_rows(const float* from, const float* row_scale, int64_t rows, int64_t columns, float* to) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < columns; i += kLanes) {
      Floats x{};
      vec::load(from + row * columns + i, kLanes, x);
      vec::store(to + row * columns + i, kLanes, x * row_scale[row]);
    }
  }
}

// Below the diagonal's tiles a decay is a product of two: from s to the last token of its tile, and from there to t.
LOCKSTEP_CLONES void mask(const float* scores, const Decays& decays, const Tokens& tokens, float* masked, float* decay_to) {
  for (int64_t column = 0; column < tokens.rows; column += kLanes) {
    Floats sums{};
    vec::load(decays.sum + column, kLanes, sums);
    const Floats to_last = decay(decays.tile[column / kUnit] - sums);
    alignas(64) float from_last[kBlock];
    float between = 0;
    for (int64_t row = column + kLanes; row < tokens.rows; row += kLanes) {
      Floats power{};
      vec::load(decays.sum + row, kLanes, power);
      vec::store(from_last + row, kLanes, decay(power + between));
      between += decays.tile[row / kUnit];
    }
    const int64_t next = column + kLanes;
    mask_rows(scores, tokens, column, column, next,
              [&](int64_t row) LOCKSTEP_INLINE_LAMBDA { return decay(decays.sum[row] - sums) * up_to(row - column); }, masked, decay_to);
    mask_rows(scores, tokens, column, next, tokens.rows, [&](int64_t row) LOCKSTEP_INLINE_LAMBDA { return to_last * from_last[row]; }, masked,
              decay_to);
  }
}

LOCKSTEP_CLONES void put(const float* from, const Tokens& tokens, int64_t columns, float d, const Rows<const float>& x, const Rows<float>& to) {
  put_rows(from, tokens, columns, d, x, to);
}
LOCKSTEP_CLONES void put(const float* from, const Tokens& tokens, int64_t columns, float d, const Rows<const c10::BFloat16>& x,
                         const Rows<c10::BFloat16>& to) {
  put_rows(from, tokens, columns, d, x, to);
}
LOCKSTEP_CLONES void put(const float* from, const Tokens& tokens, int64_t columns, const Rows<float>& to) { put_rows(from, tokens, columns, to); }
LOCKSTEP_CLONES void put(const float* from, const Tokens& tokens, int64_t columns, const Rows<c10::BFloat16>& to) {
  put_rows(from, tokens, columns, to);
}

void pack_state(const float* state, const Sizes& s, float* to) {
  std::fill_n(to, s.p * s.n, 0.0f);
  for (int64_t row = 0; row < s.channels; ++row) std::copy_n(state + row * s.numbers, s.numbers, to + row * s.n);
}
void put_state(const float* from, const Sizes& s, float* state) {
  for (int64_t row = 0; row < s.channels; ++row) std::copy_n(from + row * s.n, s.numbers, state + row * s.numbers);
}
void pack_state_transposed(const float* state, const Sizes& s, float* to) {
  std::fill_n(to, s.p * s.n, 0.0f);
  transpose(state, s.numbers, s.channels, s.numbers, to, s.p);
}
void put_state_transposed(const float* from, const Sizes& s, float* state) { transpose(from, s.p, s.numbers, s.channels, state, s.numbers); }

}  // namespace lockstep::nn::scan_cpu
