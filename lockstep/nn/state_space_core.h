// The scan of a state space in chunks (Dao and Gu, Transformers are SSMs, 2024, sections 6 and 7), and its derivatives by hand:
//   state_t = e^(a delta_t) state_(t-1) + delta_t x_t B_t^T,  y_t = state_t C_t + d x_t
// Inside a block of tokens a masked product of C B^T and delta x; between blocks their states, one after the other. All sums and states
// are fp32, in an order that depends on the sizes alone. On the CPU by kernels of our own (state_space_cpu.h), on other devices by LibTorch's
// operators (state_space_device.h). H heads of P channels, G groups of B and C, N numbers of state for each channel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::nn {

// x, b, c: views with contiguous last dim, fp32 or bf16, all of one dtype. H is a multiple of G; head h reads group h / (H / G).
// InternalError where shapes or dtypes do not fit together.
struct Scan {
  at::Tensor x;      // [B, T, H, P]
  at::Tensor b, c;   // [B, T, G, N]
  at::Tensor delta;  // [B, T, H] fp32 contiguous, behind softplus: step sizes, not negative
  at::Tensor a;      // [H] fp32: -exp(a_log)
  at::Tensor d;      // [H] fp32
  // Tokens from one kept state to the next; the last chunk of a piece may be shorter. Any value >= 1 gives the same but for rounding.
  // Backward computes the states inside one chunk again: of 8 heads, one for 64 tokens, are its workspace for each thread.
  int64_t chunk = 256;
  // [B, T] uint8 on the host, contiguous, or undefined: not zero where a document begins, whose first token sees no state before it.
  at::Tensor begins{};
  int64_t pieces = 1;   // equal parts of T that are scanned each by itself: of a sequence that is held in pieces
};

// What is kept beside the operands: the state before every chunk.
struct ScanStates {
  at::Tensor before;  // [B, pieces, chunks of a piece, H, P, N] fp32: before each chunk, with a state of zero before each piece
  at::Tensor after;   // [B, pieces, H, P, N] fp32: behind each piece, the same
  at::Tensor decay;   // [B, pieces, H] fp32: what becomes of one before the piece: the product of all e^(a delta), 0 where a document begins
};
// y [B, T, H, P] contiguous in the dtype of x, with a state of zero before each piece, and the states where they are kept (null: not): one
// pass over the operands.
at::Tensor scan_forward(const Scan& scan, ScanStates* states);
// Where a state comes from elsewhere: first [B, pieces, H, P, N] fp32, the true one before each piece; undefined: zero. y and `before` become
// what they truly are. Outputs are linear in that state, so that nothing is scanned twice, and a head is left alone from the token on
// up to which its decay is zero in fp32.
void add_first_states(const Scan& scan, const at::Tensor& first, ScanStates& states, const at::Tensor& y);

struct ScanGradients {
  at::Tensor dx;      // [B, T, H, P], written, in the dtype of x; views with contiguous last dim, as the next two. May be the memory of dy
  at::Tensor db, dc;  // [B, T, G, N], written
  at::Tensor ddelta;  // [B, T, H] fp32, written: all of it, also what comes through e^(a delta)
  at::Tensor da, dd;  // [H] fp32, added to
};
// In two parts, since the gradient of a piece's first state comes of the pieces behind it. `dy` [B, T, H, P], the dtype of x, last dim contiguous.
// First what the outputs of each piece make of the state before it:
//   dfirst [B, pieces, H, P, N] fp32, without what comes from the state behind the piece.
at::Tensor scan_backward_first(const Scan& scan, const at::Tensor& dy);
// Then all: dlast [B, pieces, H, P, N] fp32, the gradient of the state behind each piece; undefined: zero. It alone is called where
// sequences are whole.
void scan_backward(const Scan& scan, const ScanStates& states, const at::Tensor& dy, const at::Tensor& dlast, const ScanGradients& gradients);

// One token for each of B rows, in place of `state` [B, H, P, N] fp32 contiguous: the scan with T = 1 from that state -> y [B, 1, H, P]
// in the dtype of x. `chunk`, `begins` and `pieces` mean nothing here: who begins a document sets its state to zero.
at::Tensor scan_step(const Scan& scan, const at::Tensor& state);

// A causal depth-wise convolution and silu: y_t = silu(bias + sum_w weight[:, w] x_(t - W + 1 + w)) (a document's first tokens see none before it).
struct Convolution {
  at::Tensor x;       // [B, T, C], last dim contiguous, fp32 or bf16
  at::Tensor weight;  // [C, W], dtype of x
  at::Tensor bias;    // [C] or undefined
  at::Tensor begins{};   // as in Scan
  int64_t pieces = 1;
  at::Tensor before{};   // [B, pieces, W - 1, C] dtype of x, contiguous: the columns before each piece; undefined: zeros
};
at::Tensor convolve(const Convolution& of);  // [B, T, C] contiguous, dtype of x
struct ConvolutionGradients {
  at::Tensor dx;       // [B, T, C], written, last dim contiguous; may be the memory of dy, not that of x
  at::Tensor dbefore{};  // [B, pieces, W - 1, C] fp32 contiguous, written where defined
};
// dy [B, T, C]: dtype of x, last dim contiguous.
void convolve_backward_input(const Convolution& of, const at::Tensor& dy, const ConvolutionGradients& gradients);
// Adds to dweight [C, W] and dbias [C] (or undefined), fp32. Needs dy as it came: before dx is written into its memory, or from a copy.
void convolve_backward_weight(const Convolution& of, const at::Tensor& dy, const at::Tensor& dweight, const at::Tensor& dbias);

}  // namespace lockstep::nn
