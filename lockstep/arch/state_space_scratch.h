// What the kernels of a state space take on the CPU beside their operands while they run, in bytes (nn/state_space_cpu*, nn/convolution_cpu,
// nn/gated_norm): as these allocate it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/arch/layer_builder.h"
#include "lockstep/arch/state_space_branch.h"

namespace lockstep::arch {

// The sizes of one scan.
struct ScanShape {
  ScanShape(const Sizes& s, const StateSpacePart& of, int64_t pieces_of_rank)
      : part(of), batch(s.input.batch), tokens(s.length), pieces(pieces_of_rank), threads(s.input.threads), element_size(s.input.element_size) {
    chunk = std::min(of.sizes.chunk, tokens / pieces);
    chunks = divided_up(tokens / pieces, chunk);
    of_group = part.heads / part.read_groups;
    parts_of_group = divided_up(of_group, kHeads);
    heads_of_part = divided_up(of_group, parts_of_group);
  }
  static int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

  static constexpr int64_t kBlock = 64;  // tokens that see each other by one product; from block to block states go on
  static constexpr int64_t kHeads = 8;   // of a group, at most, that are one piece of work
  static constexpr int64_t kUnit = 16;   // sizes of matrices are rounded up to it
  const StateSpacePart& part;
  const int64_t batch, tokens, pieces, threads, element_size;
  int64_t chunk = 0, chunks = 0;  // tokens of a chunk, chunks of a piece
  int64_t of_group = 0, parts_of_group = 0, heads_of_part = 0;
  int64_t p() const { return rounded_up(part.sizes.head_size, kUnit); }
  int64_t n() const { return rounded_up(part.sizes.state, kUnit); }
  int64_t block() const { return std::min(chunk, kBlock); }
  int64_t work() const { return batch * pieces * part.read_groups * parts_of_group; }
  int64_t state() const { return 4 * batch * pieces * part.heads * part.sizes.head_size * part.sizes.state; }  // bytes: one for each piece

  // Of that many pieces of work, what each thread needs.
  int64_t of_threads(int64_t count, int64_t numbers) const { return 4 * std::min(threads, count) * numbers; }
  int64_t forward_numbers() const { return kBlock * (3 * n() + 2 * kBlock + 3 * p()) + heads_of_part * n() * p(); }
  int64_t forward() const { return of_threads(work(), forward_numbers()); }
  int64_t first() const { return of_threads(work(), kBlock * (n() + p()) + heads_of_part * n() * p()); }  // add_first_states
  int64_t backward_first() const { return of_threads(work(), kBlock * (n() + p()) + heads_of_part * n() * p()); }
  int64_t backward() const {
    const int64_t blocks = divided_up(chunk, block());
    const int64_t numbers = kBlock * ((5 + blocks) * n() + 5 * kBlock + 6 * p()) + (1 + heads_of_part + blocks * heads_of_part) * n() * p();
    const int64_t partial = parts_of_group > 1 ? 2 * parts_of_group * batch * tokens * part.read_groups * part.sizes.state : 0;
    return of_threads(work(), numbers) + 4 * partial + 8 * 2 * batch * pieces * part.heads;
  }

  static constexpr int64_t kStrip = 128;  // channels of a convolution that are one piece of work
  // A weight that is not fp32 is copied.
  int64_t convolution() const {
    return element_size == 4 ? 0 : 4 * part.convolved() * (part.sizes.convolution + (part.sizes.convolution_bias ? 1 : 0));
  }
  int64_t convolution_weight() const {
    return 4 * batch * pieces * divided_up(part.convolved(), kStrip) * (part.sizes.convolution + 1) * kStrip;
  }
};

}  // namespace lockstep::arch
