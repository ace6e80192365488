#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "lockstep/nn/state_space_cpu.h"
#include "lockstep/nn/state_space_cpu_gradients.h"

namespace lockstep::nn {
namespace {

using namespace scan_cpu;

struct Pass {
  const Scan& scan;
  Sizes sizes;
  const ScanStates& states;
  at::Tensor dy;
  at::Tensor dlast;   // undefined: zero
  const ScanGradients& gradients;
  at::Tensor partial;  // [2, parts of a group, B, T, G, N]: db and dc of the parts; undefined where a group is one part
  at::Tensor along;    // [2, B pieces, H] fp64: da and dd of the sequences' pieces
};

struct Space {
  Space(float* memory, const Sizes& s, int64_t heads) {
    const auto take = [&](float*& matrix, int64_t size) {
      matrix = memory;
      memory += size;
    };
    for (float** matrix : {&c, &b_transposed, &db, &dc, &dc_head}) take(*matrix, kBlock * s.n);
    for (float** matrix : {&scores, &dscores, &masked, &dmasked, &decay}) take(*matrix, kBlock * kBlock);
    for (float** matrix : {&inputs, &inputs_transposed, &weighted, &dinputs, &dy, &dy_in}) take(*matrix, kBlock * s.p);
    take(dstate_transposed, s.n * s.p);
    take(dstates, heads * s.n * s.p);
    const int64_t blocks = blocks_of_chunk(s);
    take(b, blocks * kBlock * s.n);
    take(states, blocks * heads * s.n * s.p);
  }
  static int64_t blocks_of_chunk(const Sizes& s) { return (s.chunk + s.block - 1) / s.block; }
  static int64_t size(const Sizes& s, int64_t heads) {
    const int64_t blocks = blocks_of_chunk(s);
    return kBlock * ((5 + blocks) * s.n + 5 * kBlock + 6 * s.p) + (1 + heads + blocks * heads) * s.n * s.p;
  }
  // Of the group: C of a block and B^T [n, 64], gradients of its B and C; B of all blocks of the chunk.
  float *c, *b_transposed, *db, *dc, *b;
  float *scores, *dscores;  // C B^T of a block and its gradient, of all heads
  // Of one head. dmasked: gradient of the masked scores
  float *masked, *dmasked, *decay;
  float *inputs, *inputs_transposed, *weighted, *dinputs;  // delta x; times its decay up to the block's end; the gradient of delta x
  float *dy, *dy_in;                                       // and dy times the decay from the block's begin
  float* dc_head;
  float* dstate_transposed;  // [n, p]
  float* dstates;            // [heads, p, n]: of the state behind the block
  float* states;             // [blocks, heads, p, n]: before each block
};

template <typename T>
class PartPass {
 public:
  PartPass(const Pass& pass, const Part& part, float* memory, int64_t heads)
      : pass_(pass), scan_(pass.scan), sizes_(pass.sizes), part_(part), space_(memory, sizes_, heads), along_(static_cast<size_t>(part.heads)) {}

  void run() {
    for (int64_t h = 0; h < part_.heads; ++h) {
      if (pass_.dlast.defined())
        pack_state(pass_.dlast.const_data_ptr<float>() + (piece() * sizes_.heads + part_.head + h) * sizes_.channels * sizes_.numbers, sizes_,
                   dstate(h));
      else
        std::fill_n(dstate(h), sizes_.n * sizes_.p, 0.0f);
    }
    for (int64_t chunk = sizes_.chunks; chunk-- > 0;) {
      const std::vector<Tokens> blocks = blocks_of(scan_, sizes_, part_, chunk);
      compute_states(chunk, blocks);
      for (size_t i = blocks.size(); i-- > 0;) block(blocks[i], static_cast<int64_t>(i));
    }
    double* const along = pass_.along.data_ptr<double>() + piece() * sizes_.heads + part_.head;
    for (int64_t h = 0; h < part_.heads; ++h) {
      along[h] = along_[static_cast<size_t>(h)].da;
      along[sizes_.batch * sizes_.pieces * sizes_.heads + h] = along_[static_cast<size_t>(h)].dd;
    }
  }

 private:
  struct Along {
    double da = 0, dd = 0;
  };

  int64_t piece() const { return part_.batch * sizes_.pieces + part_.piece; }
  float* b(int64_t block) const { return space_.b + block * kBlock * sizes_.n; }
  float* state(int64_t block, int64_t h) const { return space_.states + (block * part_.heads + h) * sizes_.n * sizes_.p; }
  float* dstate(int64_t h) const { return space_.dstates + h * sizes_.n * sizes_.p; }

  // Decays, delta x and the same times its decay up to the block's end.
  void prepare(const Tokens& tokens, int64_t h, Decays& decays) const {
    const int64_t head = part_.head + h;
    decays_of(scan_.delta.const_data_ptr<float>() + (tokens.batch * sizes_.tokens + tokens.token) * sizes_.heads + head, sizes_.heads,
              scan_.a.const_data_ptr<float>()[head], tokens, decays);
    pack(rows_of<T>(scan_.x, tokens.batch, tokens.token, head), tokens, sizes_.channels, decays.delta, space_.inputs);
    scale_rows(space_.inputs, decays.out, tokens.rows, sizes_.p, space_.weighted);
    if (h + 1 < part_.heads) prefetch(rows_of<T>(scan_.x, tokens.batch, tokens.token, head + 1), tokens, sizes_.channels);
  }

  // B of the chunk's blocks and the states before them.
  void compute_states(int64_t chunk, const std::vector<Tokens>& blocks) const {
    const auto count = static_cast<int64_t>(blocks.size()), size = sizes_.n * sizes_.p;
    for (int64_t h = 0; h < part_.heads; ++h)
      pack_state(pass_.states.before.const_data_ptr<float>() +
                     ((piece() * sizes_.chunks + chunk) * sizes_.heads + part_.head + h) * sizes_.channels * sizes_.numbers,
                 sizes_, state(0, h));
    for (int64_t i = 0; i < count; ++i) {
      const Tokens& tokens = blocks[static_cast<size_t>(i)];
      pack(rows_of<T>(scan_.b, tokens.batch, tokens.token, part_.group), tokens, sizes_.numbers, nullptr, b(i));
      if (i + 1 == count) break;
      Decays decays;
      for (int64_t h = 0; h < part_.heads; ++h) {
        prepare(tokens, h, decays);
        std::copy_n(state(i, h), size, state(i + 1, h));
        add({.left = {space_.weighted, 1, sizes_.p}, .right = b(i), .right_row = sizes_.n, .depth = tokens.rows}, decays.whole,
            {state(i + 1, h), sizes_.n, sizes_.p, sizes_.n});
      }
    }
  }

  void block(const Tokens& tokens, int64_t i) {
    const int64_t n = sizes_.n;
    pack(rows_of<T>(scan_.c, tokens.batch, tokens.token, part_.group), tokens, sizes_.numbers, nullptr, space_.c);
    transpose(b(i), n, tokens.rows, n, space_.b_transposed, kBlock);
    multiply_lower({.left = {space_.c, n, 1}, .right = space_.b_transposed, .right_row = kBlock, .depth = sizes_.numbers},
                   {space_.scores, kBlock, tokens.rows, tokens.rows});
    std::fill_n(space_.dscores, kBlock * kBlock, 0.0f);
    std::fill_n(space_.db, kBlock * n, 0.0f);
    std::fill_n(space_.dc, kBlock * n, 0.0f);
    for (int64_t h = 0; h < part_.heads; ++h) head(tokens, i, h);
    add({.left = {space_.dscores, kBlock, 1}, .right = b(i), .right_row = n, .depth = tokens.rows, .depths = Depths::kUpToRow}, 1.0f,
        {space_.dc, n, tokens.rows, n});
    add({.left = {space_.dscores, 1, kBlock}, .right = space_.c, .right_row = n, .depth = tokens.rows, .depths = Depths::kFromRow}, 1.0f,
        {space_.db, n, tokens.rows, n});
    put_group(space_.db, tokens, 0, pass_.gradients.db);
    put_group(space_.dc, tokens, 1, pass_.gradients.dc);
  }

  void put_group(const float* from, const Tokens& tokens, int64_t which, const at::Tensor& to) const {
    if (pass_.partial.defined())
      put(from, tokens, sizes_.numbers,
          mutable_rows_of<float>(pass_.partial[which][part_.index], tokens.batch, tokens.token, part_.group));
    else
      put(from, tokens, sizes_.numbers, mutable_rows_of<T>(to, tokens.batch, tokens.token, part_.group));
  }

  // One head's part in a block. The state behind the block is whole * state before + weighted^T B.
  void head(const Tokens& tokens, int64_t i, int64_t h) {
    const int64_t n = sizes_.n, p = sizes_.p, rows = tokens.rows, index = part_.head + h;
    Decays decays;
    TokenSums sums;
    prepare(tokens, h, decays);
    pack(rows_of<T>(pass_.dy, tokens.batch, tokens.token, index), tokens, sizes_.channels, nullptr, space_.dy);
    scale_rows(space_.dy, decays.in, rows, p, space_.dy_in);
    const Rows<T> dx = mutable_rows_of<T>(pass_.gradients.dx, tokens.batch, tokens.token, index);
    prefetch(dx, tokens, sizes_.channels);
    if (h + 1 < part_.heads) prefetch(rows_of<T>(pass_.dy, tokens.batch, tokens.token, index + 1), tokens, sizes_.channels);
    seen_in_block(tokens, decays, sums);
    seen_behind_block(tokens, i, decays, h, sums);
    add({.left = {space_.masked, 1, kBlock}, .right = space_.dy, .right_row = p, .depth = rows, .depths = Depths::kFromRow}, 1.0f,
        {space_.dinputs, p, rows, p});
    // What of the state before the block its outputs take.
    multiply({.left = {space_.dy_in, p, 1}, .right = state(i, h), .right_row = n, .depth = sizes_.channels}, nullptr, {space_.dc_head, n, rows, n});
    add_and_dot_rows(space_.dc_head, space_.c, rows, n, space_.dc, sums.before);
    const float kept = decays.whole * dot(state(i, h), dstate(h), p * n);
    add({.left = {space_.dy_in, 1, p}, .right = space_.c, .right_row = n, .depth = rows}, decays.whole, {dstate(h), n, p, n});
    Along& along = along_[static_cast<size_t>(h)];
    along.dd += put_dx(space_.dinputs, space_.dy, decays, tokens, sizes_.channels, scan_.d.const_data_ptr<float>()[index],
                       rows_of<T>(scan_.x, tokens.batch, tokens.token, index), dx, sums);
    along.da += put_ddelta(tokens, decays, sums, kept, index);
  }

  // Gradients of C B^T, by masked scores.
  void seen_in_block(const Tokens& tokens, const Decays& decays, TokenSums& sums) const {
    mask(space_.scores, decays, tokens, space_.masked, space_.decay);
    transpose(space_.inputs, sizes_.p, tokens.rows, sizes_.p, space_.inputs_transposed, kBlock);
    multiply_lower({.left = {space_.dy, sizes_.p, 1}, .right = space_.inputs_transposed, .right_row = kBlock, .depth = sizes_.channels},
                   {space_.dmasked, kBlock, tokens.rows, tokens.rows});
    scores_backward(space_.dmasked, space_.decay, space_.scores, tokens.rows, space_.dscores, sums);
  }

  // Gradients of delta x and B, by the state behind the block.
  void seen_behind_block(const Tokens& tokens, int64_t i, const Decays& decays, int64_t h, TokenSums& sums) const {
    const int64_t n = sizes_.n, p = sizes_.p, rows = tokens.rows;
    transpose(dstate(h), n, p, n, space_.dstate_transposed, p);
    multiply({.left = {b(i), n, 1}, .right = space_.dstate_transposed, .right_row = p, .depth = sizes_.numbers}, decays.out,
             {space_.dinputs, p, rows, p});
    dot_rows(space_.dinputs, space_.inputs, rows, p, sums.behind);
    add({.left = {space_.weighted, p, 1}, .right = dstate(h), .right_row = n, .depth = sizes_.channels}, 1.0f, {space_.db, n, rows, n});
  }

  // A power a delta_t is part of every decay from before t to t or later: pairs (seer, seen) with seen < t <= seer. -> da.
  double put_ddelta(const Tokens& tokens, const Decays& decays, const TokenSums& sums, float kept, int64_t index) const {
    float* const ddelta = pass_.gradients.ddelta.data_ptr<float>() + tokens.token * sizes_.heads + tokens.batch * sizes_.tokens * sizes_.heads + index;
    const float a = scan_.a.const_data_ptr<float>()[index];
    double dpower[kBlock];  // sums of what cancels
    double later = kept;
    for (int64_t t = tokens.count; t-- > 0;) {
      later += static_cast<double>(sums.seeing[t]) - sums.seen[t] + sums.before[t];
      dpower[t] = later;
    }
    double earlier = 0, da = 0;
    for (int64_t t = 0; t < tokens.count; ++t) {
      dpower[t] += earlier;
      earlier += sums.behind[t];
      da += dpower[t] * decays.delta[t];
      ddelta[t * sizes_.heads] = a * static_cast<float>(dpower[t]) + sums.inputs[t];
    }
    return da;
  }

  const Pass& pass_;
  const Scan& scan_;
  const Sizes& sizes_;
  const Part part_;
  const Space space_;
  std::vector<Along> along_;  // by head
};

// The parts of a group, one after the other.
template <typename T>
void sum_group(const at::Tensor& partial, const at::Tensor& to) {
  const int64_t tokens = to.size(0) * to.size(1), groups = to.size(2), numbers = to.size(3);
  at::parallel_for(0, tokens, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t group = 0; group < groups; ++group)
        sum_parts(partial.const_data_ptr<float>() + (i * groups + group) * numbers, partial.size(0), partial.stride(0), numbers,
                  mutable_rows_of<T>(to, i / to.size(1), i % to.size(1), group).data);
    }
  });
}

void add_along(const at::Tensor& along, const at::Tensor& to) {
  const int64_t pieces = along.size(0), heads = along.size(1);
  for (int64_t head = 0; head < heads; ++head) {
    double sum = 0;
    for (int64_t piece = 0; piece < pieces; ++piece) sum += along.const_data_ptr<double>()[piece * heads + head];
    to.data_ptr<float>()[head] += static_cast<float>(sum);
  }
}

}  // namespace

void scan_backward_cpu(const Scan& scan, const ScanStates& states, const at::Tensor& dy, const at::Tensor& dlast, const ScanGradients& gradients) {
  const Sizes sizes(scan);
  const Parts parts(sizes);
  Pass pass{.scan = scan,
            .sizes = sizes,
            .states = states,
            .dy = dy,
            .dlast = dlast,
            .gradients = gradients,
            .partial = {},
            .along = at::empty({2, sizes.batch * sizes.pieces, sizes.heads}, at::kDouble)};
  if (parts.of_group() > 1) pass.partial = at::empty({2, parts.of_group(), sizes.batch, sizes.tokens, sizes.groups, sizes.numbers}, at::kFloat);
  of_dtype(scan.x, [&]<typename T>(T) {
    at::parallel_for(0, parts.count(), 1, [&](int64_t begin, int64_t end) {
      const int64_t heads = parts.most_heads();
      const at::Tensor memory = at::empty({Space::size(sizes, heads)}, at::kFloat);
      for (int64_t i = begin; i < end; ++i) PartPass<T>(pass, parts[i], memory.data_ptr<float>(), heads).run();
    });
    if (pass.partial.defined()) {
      sum_group<T>(pass.partial[0], gradients.db);
      sum_group<T>(pass.partial[1], gradients.dc);
    }
  });
  add_along(pass.along[0], gradients.da);
  add_along(pass.along[1], gradients.dd);
}

}  // namespace lockstep::nn
