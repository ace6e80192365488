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
  at::Tensor from;                   // [B, pieces, chunks, H, P, N]: begins with the state before its first chunk; undefined: with zero
  at::Tensor before, after, decay;   // written, as in ScanStates; or undefined
  at::Tensor y;                      // written, or undefined
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

  // Chunks [begin, end) of the part's piece.
  void run(int64_t begin, int64_t end) {
    for (int64_t h = 0; h < part_.heads; ++h) {
      if (pass_.from.defined())
        pack_state_transposed(state_at(pass_.from, begin, h), sizes_, state(h));
      else
        std::fill_n(state(h), sizes_.n * sizes_.p, 0.0f);
    }
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      if (pass_.before.defined())
        for (int64_t h = 0; h < part_.heads; ++h) put_state_transposed(state(h), sizes_, mutable_state_at(pass_.before, chunk, h));
      const std::vector<Tokens> blocks = blocks_of(pass_.scan, sizes_, part_, chunk);
      for (size_t i = 0; i < blocks.size(); ++i) {
        // Behind the last block a state is wanted by the next chunk or by `after`.
        const bool last = chunk + 1 == end && i + 1 == blocks.size();
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
  const float* state_at(const at::Tensor& states, int64_t chunk, int64_t h) const { return states.const_data_ptr<float>() + state_index(chunk, h); }
  float* mutable_state_at(const at::Tensor& states, int64_t chunk, int64_t h) const { return states.data_ptr<float>() + state_index(chunk, h); }

  void put_end(int64_t h) const {
    const int64_t row = (part_.batch * sizes_.pieces + part_.piece) * sizes_.heads + part_.head + h;
    put_state_transposed(state(h), sizes_, pass_.after.data_ptr<float>() + row * sizes_.channels * sizes_.numbers);
    pass_.decay.data_ptr<float>()[row] = static_cast<float>(std::exp(powers_[static_cast<size_t>(h)]));
  }

  void block(const Tokens& tokens, bool update) {
    const Scan& scan = pass_.scan;
    const bool outputs = pass_.y.defined();
    pack(rows_of<T>(scan.b, tokens.batch, tokens.token, part_.group), tokens, sizes_.numbers, nullptr, space_.b);
    if (outputs) {
      pack(rows_of<T>(scan.c, tokens.batch, tokens.token, part_.group), tokens, sizes_.numbers, nullptr, space_.c);
      transpose(space_.b, sizes_.n, tokens.rows, sizes_.n, space_.b_transposed, kBlock);
      multiply_lower({.left = {space_.c, sizes_.n, 1}, .right = space_.b_transposed, .right_row = kBlock, .depth = sizes_.numbers},
                     {space_.scores, kBlock, tokens.rows, tokens.rows});
    }
    Decays decays;
    for (int64_t h = 0; h < part_.heads; ++h) {
      const int64_t head = part_.head + h;
      decays_of(scan.delta.const_data_ptr<float>() + (tokens.batch * sizes_.tokens + tokens.token) * sizes_.heads + head, sizes_.heads,
                scan.a.const_data_ptr<float>()[head], tokens, decays);
      pack(rows_of<T>(scan.x, tokens.batch, tokens.token, head), tokens, sizes_.channels, decays.delta, space_.inputs);
      if (h + 1 < part_.heads) prefetch(rows_of<T>(scan.x, tokens.batch, tokens.token, head + 1), tokens, sizes_.channels);
      if (outputs) put_outputs(tokens, decays, h);
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

// Every part, its chunks in one go or each by itself.
void run(const Pass& pass, bool chunks_apart) {
  const Parts parts(pass.sizes);
  const int64_t chunks = pass.sizes.chunks, each = chunks_apart ? 1 : chunks;
  of_dtype(pass.scan.x, [&]<typename T>(T) {
    at::parallel_for(0, parts.count() * (chunks / each), 1, [&](int64_t begin, int64_t end) {
      const at::Tensor memory = at::empty({space_for(pass.sizes, parts.most_heads())}, at::kFloat);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % (chunks / each) * each;
        PartPass<T>(pass, parts[i / (chunks / each)], memory.data_ptr<float>()).run(first, first + each);
      }
    });
  });
}

ScanStates empty_states(const Sizes& s) {
  return {.before = at::empty({s.batch, s.pieces, s.chunks, s.heads, s.channels, s.numbers}, at::kFloat),
          .after = at::empty({s.batch, s.pieces, s.heads, s.channels, s.numbers}, at::kFloat),
          .decay = at::empty({s.batch, s.pieces, s.heads}, at::kFloat)};
}

at::Tensor empty_outputs(const Scan& scan) { return at::empty(scan.x.sizes(), scan.x.options()); }

}  // namespace

at::Tensor scan_forward_cpu(const Scan& scan, ScanStates* states) {
  Pass pass{.scan = scan, .sizes = Sizes(scan), .from = {}, .before = {}, .after = {}, .decay = {}, .y = empty_outputs(scan)};
  if (states) {
    *states = empty_states(pass.sizes);
    pass.before = states->before;
    pass.after = states->after;
    pass.decay = states->decay;
  }
  run(pass, /*chunks_apart=*/false);
  return pass.y;
}

ScanStates scan_states_cpu(const Scan& scan) {
  const Sizes sizes(scan);
  ScanStates states = empty_states(sizes);
  run({.scan = scan, .sizes = sizes, .from = {}, .before = states.before, .after = states.after, .decay = states.decay, .y = {}},
      /*chunks_apart=*/false);
  return states;
}

at::Tensor scan_outputs_cpu(const Scan& scan, const ScanStates& states) {
  const Pass pass{.scan = scan, .sizes = Sizes(scan), .from = states.before, .before = {}, .after = {}, .decay = {}, .y = empty_outputs(scan)};
  run(pass, /*chunks_apart=*/true);
  return pass.y;
}

void add_first_states_cpu(const Scan& scan, const at::Tensor& first, ScanStates& states) {
  const Sizes s(scan);
  const int64_t size = s.channels * s.numbers;
  at::parallel_for(0, s.batch * s.pieces * s.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i % s.heads, piece = i / s.heads;  // of all sequences
      const float* from = first.const_data_ptr<float>() + i * size;
      double power = 0;
      for (int64_t t = 0; t < s.length; ++t) {
        const int64_t token = piece * s.length + t;
        if (t % s.chunk == 0) {
          float* to = states.before.data_ptr<float>() + ((piece * s.chunks + t / s.chunk) * s.heads + head) * size;
          const auto scale = static_cast<float>(std::exp(power));
          for (int64_t k = 0; k < size; ++k) to[k] += scale * from[k];
        }
        if (scan.begins.defined() && scan.begins.const_data_ptr<uint8_t>()[token]) break;
        power += static_cast<double>(scan.a.const_data_ptr<float>()[head]) * scan.delta.const_data_ptr<float>()[token * s.heads + head];
      }
    }
  });
}

}  // namespace lockstep::nn
