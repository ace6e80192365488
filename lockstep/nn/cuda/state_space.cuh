// The kernels of a state space: its convolution, and its scan by tiles of 32 tokens (Dao and Gu 2024, section 6). As launch.cuh: pointers are
// the device's, nothing waits, sums have a fixed order, std::runtime_error where a launch is refused.
#pragma once

#include "lockstep/nn/cuda/launch.cuh"

namespace lockstep::nn::cuda {

// [B, T, heads, n] of the elements' type, the last dim contiguous; strides in elements.
struct Strided {
  void* data;
  int64_t batch, token, head;
};

struct ScanSizes {
  int64_t batch, tokens, heads, groups, channels, numbers;
  int64_t pieces;  // equal parts of the tokens, each scanned from a state of zero
  int64_t chunk;   // tokens of a kept state; a piece has `chunks` of them
  int64_t chunks;
};
struct ScanInputs {
  ScanSizes sizes;
  Strided x, b, c;
  const float* delta;     // [B, T, H]
  const float* a;         // [H]
  const float* d;         // [H]
  const uint8_t* begins;  // [B, T], or null
};

constexpr int kMostNumbers = 256;  // N of a state that these kernels hold; for others LibTorch's operators
constexpr int kTileTokens = 32;    // that see each other by one product
constexpr int kTileChannels = 32;  // of a block: a head of more has several

struct ScanForward {
  ScanInputs in;
  Strided y;
  float* before;  // [B, pieces, chunks, H, P, N], or null
  float* after;   // [B, pieces, H, P, N], or null, as the next
  float* decay;   // [B, pieces, H]
};
void launch_scan_forward(cudaStream_t stream, Element type, const ScanForward& call);

// What the state before each piece gives to the outputs and to the states before chunks.
struct ScanFirst {
  ScanInputs in;
  const float* first;  // [B, pieces, H, P, N]
  float* before;
  Strided y;
};
void launch_scan_first(cudaStream_t stream, Element type, const ScanFirst& call);

// What the outputs of each piece make of the state before it.
struct ScanBackwardFirst {
  ScanInputs in;
  Strided dy;
  float* dfirst;  // [B, pieces, H, P, N]
};
void launch_scan_backward_first(cudaStream_t stream, Element type, const ScanBackwardFirst& call);

// From the last chunk of every piece to its first, two launches each: what each head has, and sums over the heads of a group.
struct ScanBackward {
  ScanInputs in;
  const float* before;
  Strided dy;
  const float* dlast;  // or null
  Strided dx, db, dc;
  float* ddelta;       // [B, T, H], written
  float* da;           // [H], added to, as the next
  float* dd;
  float* workspace;    // scan_backward_workspace() floats
};
int64_t scan_backward_workspace(const ScanSizes& sizes);
void launch_scan_backward(cudaStream_t stream, Element type, const ScanBackward& call);

struct ConvolutionInputs {
  int64_t batch, tokens, channels, width, pieces;
  const void* x;          // [B, T, C] of the elements' type
  int64_t x_batch, x_token;
  const void* weight;     // [C, W]
  const void* bias;       // [C], or null
  const uint8_t* begins;  // [B, T], or null
  const void* before;     // [B, pieces, W - 1, C], or null: zeros
};
constexpr int kMostWidth = 8;  // tokens that a convolution of these kernels sees
void launch_convolution(cudaStream_t stream, Element type, const ConvolutionInputs& in, void* y);  // [B, T, C] contiguous

struct ConvolutionBackward {
  ConvolutionInputs in;
  const void* dy;
  int64_t dy_batch, dy_token;
  void* dx;  // may not be dy
  int64_t dx_batch, dx_token;
  float* dbefore;  // [B, pieces, W - 1, C], or null
};
void launch_convolution_backward(cudaStream_t stream, Element type, const ConvolutionBackward& call);

// Added to dweight [C, W] and dbias [C] (or null). `partial`: kStripes * C * (W + 1) floats.
struct ConvolutionWeightBackward {
  ConvolutionInputs in;
  const void* dy;
  int64_t dy_batch, dy_token;
  float* partial;
  float* dweight;
  float* dbias;
};
void launch_convolution_weight_backward(cudaStream_t stream, Element type, const ConvolutionWeightBackward& call);

}  // namespace lockstep::nn::cuda
