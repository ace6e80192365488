#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "lockstep/nn/state_space_cpu.h"
#include "lockstep/nn/state_space_cpu_blocks.h"

namespace lockstep::nn {
namespace {

using namespace scan_cpu;

// From the last block of a piece to its first: dstate = whole dstate + (decay from the block's begin * dy)^T C.
template <typename T>
void run_part(const Scan& scan, const Sizes& s, const Part& part, const at::Tensor& dy, const at::Tensor& dfirst, float* memory) {
  float *const c = memory, *const dy_in = c + kBlock * s.n, *const dstates = dy_in + kBlock * s.p;
  const int64_t size = s.n * s.p;
  std::fill_n(dstates, part.heads * size, 0.0f);
  Decays decays;
  for (int64_t chunk = s.chunks; chunk-- > 0;) {
    const std::vector<Tokens> blocks = blocks_of(scan, s, part, chunk);
    for (size_t i = blocks.size(); i-- > 0;) {
      const Tokens& tokens = blocks[i];
      pack(rows_of<T>(scan.c, tokens.batch, tokens.token, part.group), tokens, s.numbers, nullptr, c);
      for (int64_t h = 0; h < part.heads; ++h) {
        const int64_t head = part.head + h;
        decays_of(scan.delta.const_data_ptr<float>() + (tokens.batch * s.tokens + tokens.token) * s.heads + head, s.heads,
                  scan.a.const_data_ptr<float>()[head], tokens, decays);
        pack(rows_of<T>(dy, tokens.batch, tokens.token, head), tokens, s.channels, decays.in, dy_in);
        add({.left = {dy_in, 1, s.p}, .right = c, .right_row = s.n, .depth = tokens.rows}, decays.whole, {dstates + h * size, s.n, s.p, s.n});
      }
    }
  }
  float* const to = dfirst.data_ptr<float>() + ((part.batch * s.pieces + part.piece) * s.heads + part.head) * s.channels * s.numbers;
  for (int64_t h = 0; h < part.heads; ++h) put_state(dstates + h * size, s, to + h * s.channels * s.numbers);
}

}  // namespace

at::Tensor scan_backward_first_cpu(const Scan& scan, const at::Tensor& dy) {
  const Sizes s(scan);
  const Parts parts(s);
  at::Tensor dfirst = at::empty({s.batch, s.pieces, s.heads, s.channels, s.numbers}, at::kFloat);
  of_dtype(scan.x, [&]<typename T>(T) {
    at::parallel_for(0, parts.count(), 1, [&](int64_t begin, int64_t end) {
      const at::Tensor memory = at::empty({kBlock * (s.n + s.p) + parts.most_heads() * s.n * s.p}, at::kFloat);
      for (int64_t i = begin; i < end; ++i) run_part<T>(scan, s, parts[i], dy, dfirst, memory.data_ptr<float>());
    });
  });
  return dfirst;
}

}  // namespace lockstep::nn
