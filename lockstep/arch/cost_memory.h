// What the walks over the memory of layers share: inside arch/ alone.
#pragma once

#include <algorithm>

#include "lockstep/arch/cost_sizes.h"

namespace lockstep::arch {

// Bytes alive while a layer runs, in the order in which the code of nn/ and model/ allocates and releases.
class Memory {
 public:
  explicit Memory(int64_t now) : now_(now), peak_(now) {}
  void take(int64_t bytes) { peak_ = std::max(peak_, now_ += bytes); }
  void drop(int64_t bytes) { now_ -= bytes; }
  void scratch(int64_t bytes) { take(bytes), drop(bytes); }
  int64_t now() const { return now_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t now_;
  int64_t peak_;
};

// Each function stands for the one of the same name in nn/.

inline void norm_forward(const Sizes& s, Memory& memory) {
  memory.take(s.hidden + s.statistics);
}

// Leaves dx; the statistics and both operands stay for W.
inline void norm_backward_input(const Sizes& s, Memory& memory) {
  memory.take(s.hidden);
}

// Sums over rows are taken in this many pieces first (nn/norm_cpu.cpp, nn/accumulate_cpu.cpp).
inline int64_t pieces(int64_t rows) { return std::min<int64_t>(16, rows); }

inline void norm_backward_weight(const Sizes& s, Memory& memory) { memory.scratch(pieces(s.rows) * 2 * 4 * s.model.hidden); }

// Packing areas of a bf16 product (oneDNN): bounded, whatever the sizes.
inline constexpr int64_t kPackingBytes = 128 * 1024;

// The mask, kept, and for the product a copy of it in the dtype of x.
inline void dropout_forward(const Sizes& s, Memory& memory) {
  memory.take(s.mask);
  if (s.mask > 0) memory.scratch(s.hidden);
}

// A masked copy of dy; nothing without dropout. Releases the mask.
inline void dropout_backward(const Sizes& s, Memory& memory) {
  if (s.mask == 0) return;
  memory.take(s.hidden);
  memory.scratch(s.hidden);
  memory.drop(s.mask);
}

// Of what is there behind I, which belongs to others.
struct Others {
  int64_t dx = 0;
  int64_t dy = 0;  // of the head: the loss
};

// Held and workspace of I alone: `memory` has walked over it. before: with dx.
inline void apart(const Memory& memory, int64_t before, const Others& others, LayerCost& cost) {
  cost.held = memory.now() - others.dx - others.dy;
  cost.input_workspace = memory.peak() - before;
}

}  // namespace lockstep::arch
