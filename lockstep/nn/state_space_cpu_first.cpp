#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/nn/state_space_cpu.h"
#include "lockstep/nn/state_space_cpu_blocks.h"

namespace lockstep::nn {
namespace {

using namespace scan_cpu;

struct Given {
  const Scan& scan;
  Sizes sizes;
  at::Tensor first;      // [B, pieces, H, P, N]
  at::Tensor before, y;  // added to
};

// What the state before a piece still is, head by head, along the piece.
template <typename T>
class FirstPass {
 public:
  // memory: space_for elements, aligned to 64 bytes.
  FirstPass(const Given& given, const Part& part, float* memory)
      : given_(given), sizes_(given.sizes), part_(part), c_(memory), sums_(c_ + kBlock * sizes_.n), states_(sums_ + kBlock * sizes_.p),
        powers_(static_cast<size_t>(part.heads), 0.0) {}
  static int64_t space_for(const Sizes& s, int64_t heads) { return kBlock * (s.n + s.p) + heads * s.n * s.p; }

  void run() {
    for (int64_t h = 0; h < part_.heads; ++h) pack_state_transposed(first(h), sizes_, state(h));
    for (int64_t chunk = 0; chunk < sizes_.chunks && is_left(); ++chunk) {
      for (int64_t h = 0; h < part_.heads; ++h) add_before(chunk, h);
      for (const Tokens& tokens : blocks_of(given_.scan, sizes_, part_, chunk))
        if (is_left()) block(tokens);
    }
  }

 private:
  int64_t piece() const { return part_.batch * sizes_.pieces + part_.piece; }
  int64_t size() const { return sizes_.channels * sizes_.numbers; }
  float* state(int64_t h) const { return states_ + h * sizes_.n * sizes_.p; }
  const float* first(int64_t h) const { return given_.first.const_data_ptr<float>() + (piece() * sizes_.heads + part_.head + h) * size(); }
  float left(int64_t h) const { return static_cast<float>(std::exp(powers_[static_cast<size_t>(h)])); }
  bool is_left() const {
    for (int64_t h = 0; h < part_.heads; ++h)
      if (left(h) > 0) return true;
    return false;
  }

  void add_before(int64_t chunk, int64_t h) const {
    const float scale = left(h);
    if (scale == 0) return;
    const float* const from = first(h);
    float* const to = given_.before.data_ptr<float>() + ((piece() * sizes_.chunks + chunk) * sizes_.heads + part_.head + h) * size();
    for (int64_t i = 0; i < size(); ++i) to[i] += scale * from[i];
  }

  void block(const Tokens& tokens) {
    const Scan& scan = given_.scan;
    pack(rows_of<T>(scan.c, tokens.batch, tokens.token, part_.group), tokens, sizes_.numbers, nullptr, c_);
    Decays decays;
    for (int64_t h = 0; h < part_.heads; ++h) {
      const float scale = left(h);
      if (scale == 0) continue;
      const int64_t head = part_.head + h;
      decays_of(scan.delta.const_data_ptr<float>() + (tokens.batch * sizes_.tokens + tokens.token) * sizes_.heads + head, sizes_.heads,
                scan.a.const_data_ptr<float>()[head], tokens, decays);
      for (float& decay : decays.in) decay *= scale;
      multiply({.left = {c_, sizes_.n, 1}, .right = state(h), .right_row = sizes_.p, .depth = sizes_.numbers}, decays.in,
               {sums_, sizes_.p, tokens.rows, sizes_.p});
      const Rows<T> y = mutable_rows_of<T>(given_.y, tokens.batch, tokens.token, head);
      put(sums_, tokens, sizes_.channels, 1.0f, rows_of<T>(given_.y, tokens.batch, tokens.token, head), y);
      powers_[static_cast<size_t>(h)] += tokens.ends_document() ? -HUGE_VAL : decays.power;
    }
  }

  const Given& given_;
  const Sizes& sizes_;
  const Part part_;
  float *const c_, *const sums_;  // [64, n], [64, p]
  float* const states_;           // [heads, n, p]: before the piece
  std::vector<double> powers_;    // by head: the sum of a delta since the piece began; -infinity behind a document's begin
};

}  // namespace

void add_first_states_cpu(const Scan& scan, const at::Tensor& first, ScanStates& states, const at::Tensor& y) {
  const Given given{.scan = scan, .sizes = Sizes(scan), .first = first, .before = states.before, .y = y};
  const Parts parts(given.sizes);
  of_dtype(scan.x, [&]<typename T>(T) {
    at::parallel_for(0, parts.count(), 1, [&](int64_t begin, int64_t end) {
      const at::Tensor memory = at::empty({FirstPass<T>::space_for(given.sizes, parts.most_heads())}, at::kFloat);
      for (int64_t i = begin; i < end; ++i) FirstPass<T>(given, parts[i], memory.data_ptr<float>()).run();
    });
  });
}

}  // namespace lockstep::nn
