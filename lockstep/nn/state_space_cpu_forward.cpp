#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "lockstep/nn/state_space_cpu.h"
#include "lockstep/nn/state_space_cpu_blocks.h"

namespace lockstep::nn {
namespace {

using namespace scan_cpu;

// What a pass over chunks reads and writes.
struct Pass {
  const Scan& scan;
  Sizes sizes;
  at::Tensor before, after, decay;   // written, as in ScanStates; or undefined
  at::Tensor y;                      // written
};

struct Space {
  Space(float* memory, const Sizes& s) {
    b = memory;
    c = b + kBlock * s.n;
    b_transposed = c + kBlock * s.n;
    scores = b_transposed + kBlock * s.n;
    masked = scores + kBlock * kBlock;
    inputs = masked + kBlock * kBlock;
    weighted = inputs + kBlock * s.p;
    sums = weighted + kBlock * s.p;
    states = sums + kBlock * s.p;
  }
  float *b, *c, *b_transposed;  // of the group; the last [n, 64]
  float *scores, *masked;       // [64, 64]
  float *inputs, *weighted;     // [64, p]: delta x; the same times its decay up to the block's end
  float* sums;                  // [64, p]: y without d x
  float* states;                // [heads, n, p]: transposed, as outputs take them
};
int64_t space_for(const Sizes& s, int64_t heads) {
  return kBlock * (3 * s.n + 2 * kBlock + 3 * s.p) + heads * s.n * s.p;
}

template <typename T>
class PartPass {
 public:
  // memory: space_for elements, aligned to 64 bytes.
  PartPass(const Pass& pass, const Part& part, float* memory)
      : pass_(pass), sizes_(pass.sizes), part_(part), space_(memory, sizes_), powers_(static_cast<size_t>(part.heads), 0.0) {}

  void run() {
    std::fill_n(state(0), part_.heads * sizes_.n * sizes_.p, 0.0f);
    for (int64_t chunk = 0; chunk < sizes_.chunks; ++chunk) {
      if (pass_.before.defined())
        for (int64_t h = 0; h < part_.heads; ++h) put_state_transposed(state(h), sizes_, mutable_state_at(pass_.before, chunk, h));
      const std::vector<Tokens> blocks = blocks_of(pass_.scan, sizes_, part_, chunk);
      for (size_t i = 0; i < blocks.size(); ++i) {
        // Behind the last block a state is wanted by the next chunk or by `after`.
        const bool last = chunk + 1 == sizes_.chunks && i + 1 == blocks.size();
        block(blocks[i], !last || pass_.after.defined());
      }
    }
    if (pass_.after.defined())
      for (int64_t h = 0; h < part_.heads; ++h) put_end(h);
  }

 private:
  float* state(int64_t h) const { return space_.states + h * sizes_.n * sizes_.p; }
  int64_t state_index(int64_t chunk, int64_t h) const {
    return (((part_.batch * sizes_.pieces + part_.piece) * sizes_.chunks + chunk) * sizes_.heads + part_.head + h) * sizes_.channels * sizes_.numbers;
  }
  float* mutable_state_at(const at::Tensor& states, int64_t chunk, int64_t h) const { return states.data_ptr<float>() + state_index(chunk, h); }

  void put_end(int64_t h) const {
    const int64_t row = (part_.batch * sizes_.pieces + part_.piece) * sizes_.heads + part_.head + h;
    put_state_transposed(state(h), sizes_, pass_.after.data_ptr<float>() + row * sizes_.channels * sizes_.numbers);
    pass_.decay.data_ptr<float>()[row] = static_cast<float>(std::exp(powers_[static_cast<size_t>(h)]));
  }

  void block(const Tokens& tokens, bool update) {
    const Scan& scan = pass_.scan;
    pack(rows_of<T>(scan.b, tokens.batch, tokens.token, part_.group), tokens, sizes_.numbers, nullptr, space_.b);
    pack(rows_of<T>(scan.c, tokens.batch, tokens.token, part_.group), tokens, sizes_.numbers, nullptr, space_.c);
    transpose(space_.b, sizes_.n, tokens.rows, sizes_.n, space_.b_transposed, kBlock);
    multiply_lower({.left = {space_.c, sizes_.n, 1}, .right = space_.b_transposed, .right_row = kBlock, .depth = sizes_.numbers},
                   {space_.scores, kBlock, tokens.rows, tokens.rows});
    Decays decays;
    for (int64_t h = 0; h < part_.heads; ++h) {
      const int64_t head = part_.head + h;
      decays_of(scan.delta.const_data_ptr<float>() + (tokens.batch * sizes_.tokens + tokens.token) * sizes_.heads + head, sizes_.heads,
                scan.a.const_data_ptr<float>()[head], tokens, decays);
      pack(rows_of<T>(scan.x, tokens.batch, tokens.token, head), tokens, sizes_.channels, decays.delta, space_.inputs);
      if (h + 1 < part_.heads) prefetch(rows_of<T>(scan.x, tokens.batch, tokens.token, head + 1), tokens, sizes_.channels);
      put_outputs(tokens, decays, h);
      if (update) put_next_state(tokens, decays, h);
      powers_[static_cast<size_t>(h)] += tokens.ends_document() ? -HUGE_VAL : decays.power;
    }
  }

  // y = what of the state before the block is left, and what the block's tokens give.
  void put_outputs(const Tokens& tokens, const Decays& decays, int64_t h) const {
    const Scan& scan = pass_.scan;
    const int64_t head = part_.head + h;
    const Result sums{space_.sums, sizes_.p, tokens.rows, sizes_.p};
    const Rows<T> y = mutable_rows_of<T>(pass_.y, tokens.batch, tokens.token, head);
    prefetch(y, tokens, sizes_.channels);
    mask(space_.scores, decays, tokens, space_.masked, nullptr);
    multiply({.left = {space_.c, sizes_.n, 1}, .right = state(h), .right_row = sizes_.p, .depth = sizes_.numbers}, decays.in, sums);
    add({.left = {space_.masked, kBlock, 1}, .right = space_.inputs, .right_row = sizes_.p, .depth = tokens.rows, .depths = Depths::kUpToRow}, 1.0f,
        sums);
    put(space_.sums, tokens, sizes_.channels, scan.d.const_data_ptr<float>()[head], rows_of<T>(scan.x, tokens.batch, tokens.token, head), y);
  }

  void put_next_state(const Tokens& tokens, const Decays& decays, int64_t h) const {
    scale_rows(space_.inputs, decays.out, tokens.rows, sizes_.p, space_.weighted);
    add({.left = {space_.b, 1, sizes_.n}, .right = space_.weighted, .right_row = sizes_.p, .depth = tokens.rows}, decays.whole,
        {state(h), sizes_.p, sizes_.n, sizes_.p});
  }

  const Pass& pass_;
  const Sizes& sizes_;
  const Part part_;
  const Space space_;
  std::vector<double> powers_;  // by head: the sum of a delta since the piece began; -infinity behind a document's begin
};

}  // namespace

at::Tensor scan_forward_cpu(const Scan& scan, ScanStates* states) {
  const Sizes sizes(scan);
  Pass pass{.scan = scan, .sizes = sizes, .before = {}, .after = {}, .decay = {}, .y = at::empty(scan.x.sizes(), scan.x.options())};
  if (states) {
    pass.before = states->before = at::empty({sizes.batch, sizes.pieces, sizes.chunks, sizes.heads, sizes.channels, sizes.numbers}, at::kFloat);
    pass.after = states->after = at::empty({sizes.batch, sizes.pieces, sizes.heads, sizes.channels, sizes.numbers}, at::kFloat);
    pass.decay = states->decay = at::empty({sizes.batch, sizes.pieces, sizes.heads}, at::kFloat);
  }
  const Parts parts(sizes);
  of_dtype(scan.x, [&]<typename T>(T) {
    at::parallel_for(0, parts.count(), 1, [&](int64_t begin, int64_t end) {
      const at::Tensor memory = at::empty({space_for(sizes, parts.most_heads())}, at::kFloat);
      for (int64_t i = begin; i < end; ++i) PartPass<T>(pass, parts[i], memory.data_ptr<float>()).run();
    });
  });
  return pass.y;
}

}  // namespace lockstep::nn
