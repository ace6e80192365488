// A state space of several heads (Mamba-2: Dao and Gu, Transformers are SSMs, 2024) between its two projections:
//   z | x | B | C | dt = in(u),  x | B | C = silu(convolution(x | B | C)),  delta = step sizes of dt,
//   y = scan(x, B, C, delta, a = -exp(a_log), d),  out(norm(y silu(z)))
// Its heads are those here, with the groups of B and C that `in` makes here: their own, or all of them, of which its heads
// read one. A document begins with a state of zero and sees no column before it.
//
// Where others have tokens of the same sequences, each has pieces of them (piece_exchange.h): the last columns of every piece go to
// who follows before the convolution, and the states behind all pieces before the outputs are made; backward their gradients the other way.
// Every holder makes the same calls, in one order.
//
// I goes up to the gradient of what `in` made, and there makes the gradients of the convolution, of a_log, d and dt_bias, which are small: they
// are kept as one tensor. W adds them to the parameters, once, and makes those of `in`, `out` and the norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lockstep/arch/model_config.h"
#include "lockstep/nn/branch.h"
#include "lockstep/nn/gated_norm.h"
#include "lockstep/nn/piece_states.h"
#include "lockstep/nn/state_space_core.h"

namespace lockstep::nn {

class StateSpace : public Branch {
 public:
  struct Shape {
    arch::StateSpaceSizes sizes{};  // of the whole model
    int64_t heads = 0;              // H, those that are here
    int64_t groups = 0;             // of B and C that `in` makes here
    int64_t first_group = 0;        // of these, what the heads here read: so many neighbours
    int64_t read_groups = 0;
    int64_t inner() const { return heads * sizes.head_size; }
    int64_t convolved() const { return inner() + 2 * groups * sizes.state; }  // C: x | B | C
  };
  struct Parts {
    std::unique_ptr<Linear> in;           // [D] -> [z | x | B | C | dt], of all rows
    Parameter convolution;                // [C, W]
    Parameter convolution_bias{};         // [C], or none
    Parameter dt_bias, a_log, d;          // [H]; used in fp32
    std::unique_ptr<GatedNorm> norm;      // or the gate alone
    std::unique_ptr<Linear> out;          // [H P] -> [D]
    std::unique_ptr<PieceExchange> pieces{};  // null: whole sequences
  };
  struct Saved : Branch::Saved {
    Linear::Saved in;
    at::Tensor projected;  // [B, T, z | x | B | C | dt]
    at::Tensor convolved;  // [B, T, x | B | C]
    at::Tensor delta;      // [B, T, H] fp32
    at::Tensor before;     // [B, P, chunks, H, P, N] fp32: the states before chunks
    at::Tensor columns;    // [B, P, W - 1, C]: before each piece, where sequences are in pieces
    at::Tensor decays;     // [holders, P, B, H, 1] fp32: of all pieces, likewise
    GatedNorm::Saved norm;  // y, and z as a view of `projected`
    Linear::Saved out;
    const TokenPlaces* places = nullptr;
    at::Tensor small;      // fp32, from I to W: gradients of the convolution and its bias, of a_log, d and dt_bias
  };

  // InternalError where the sizes contradict each other.
  StateSpace(Shape shape, Parts parts);

  std::unique_ptr<Branch::Saved> new_saved() const override { return std::make_unique<Saved>(); }
  using Branch::forward;
  at::Tensor forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) override;
  at::Tensor backward_input(const at::Tensor& dy, Branch::Saved& saved) override;
  Pending start_backward_input(const at::Tensor& dy, Branch::Saved& saved) override;
  void backward_weight(Branch::Saved& saved) override;

  void recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences& sequences) override;
  // What `in` made, the states and the scan's outputs stay. The convolution, the step sizes and the norm are computed again, without calls
  // over cp.
  void forget(Branch::Saved& saved) override;
  void restore(const at::Tensor& x, Branch::Saved& saved) override;

  // Of each slot the state behind its last token and the columns that the convolution sees next; no room for tokens is wanted.
  KvCacheLayer new_cache(int64_t slots, int64_t capacity, const at::TensorOptions& options) const override;
  // Goes on from the states of the slots. Prompts that are cut leave the state of the whole sequence everywhere.
  at::Tensor decode(const at::Tensor& x, const KvCacheLayer& cache, std::span<const CacheSpan> spans) override;

 private:
  struct Small {
    at::Tensor weight, bias, a_log, d, dt_bias;  // views of Saved::small
  };
  // Columns of [B, T, z | x | B | C | dt].
  at::Tensor gate(const at::Tensor& projected) const { return projected.narrow(2, 0, shape_.inner()); }
  at::Tensor to_convolve(const at::Tensor& projected) const { return projected.narrow(2, shape_.inner(), shape_.convolved()); }
  at::Tensor steps(const at::Tensor& projected) const {
    return projected.narrow(2, shape_.inner() + shape_.convolved(), shape_.heads);
  }
  // Of [B, T, x | B | C].
  at::Tensor channels(const at::Tensor& convolved) const;                // [B, T, H, P]
  at::Tensor group_rows(const at::Tensor& convolved, bool c) const;      // [B, T, groups, N], of those that are read
  double most_step() const;
  int64_t columns_seen() const { return shape_.sizes.convolution - 1; }  // W - 1

  at::Tensor project(const at::Tensor& x, Saved* saved, const Sequences& sequences);
  at::Tensor mix(const at::Tensor& projected, Saved* saved, const TokenPlaces* places);  // what `out` takes
  at::Tensor pieces_forward(Scan& scan, PieceStates& pieces, Saved* saved) const;
  at::Tensor gated(const at::Tensor& y, const at::Tensor& projected, GatedNorm::Saved* saved);
  std::optional<PieceStates> pieces_of_pass(const TokenPlaces* places, int64_t tokens) const;
  Convolution convolution_of(const at::Tensor& projected, const at::Tensor& begins) const;
  Scan scan_of(const at::Tensor& convolved, const at::Tensor& delta, const at::Tensor& begins) const;
  at::Tensor deltas(const at::Tensor& projected) const;
  at::Tensor core_backward(const at::Tensor& dy, Saved& saved);  // the gradient of `projected`
  at::Tensor last_gradients(const Scan& scan, PieceStates& pieces, const at::Tensor& dy, Saved& saved) const;
  void convolution_backward(const at::Tensor& dprojected, const at::Tensor& begins, std::optional<PieceStates>& pieces, Saved& saved) const;
  Small small_of(const at::Tensor& all) const;
  void add_small(const Small& gradients) const;  // to those of the parameters

  // state_space_decode.cpp
  at::Tensor decode_cut(const at::Tensor& projected, const KvCacheLayer& cache, std::span<const CacheSpan> spans);
  at::Tensor decode_here(const at::Tensor& projected, const KvCacheLayer& cache, std::span<const CacheSpan> spans);

  const Shape shape_;
  Parts parts_;
};

}  // namespace lockstep::nn
