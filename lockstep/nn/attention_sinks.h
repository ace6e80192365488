// Attention sinks: a key of a learned score for each query head and no value, which every query sees beside its own keys (Xiao et al.,
// StreamingLLM, 2023; gpt-oss). As attention is a sum over keys, it comes behind all others: outputs shrink by what it takes of their weight.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// out [B, S, H, V] contiguous, fp32 or bf16; logsumexp [B, H, S] fp32, of scores; sinks [H], fp32 or bf16.

// In place, from attention without sinks: logsumexp becomes log(e^logsumexp + e^sink), out shrinks by what that has grown.
void apply_sinks(const at::Tensor& sinks, const at::Tensor& out, const at::Tensor& logsumexp);
// Adds the gradient of the sinks to dsinks [H] fp32, in the order of the tokens; out and logsumexp with them, dout like out. That of q, k and
// v is what it is without, from these.
void add_sinks_gradient(const at::Tensor& sinks, const at::Tensor& dout, const at::Tensor& out, const at::Tensor& logsumexp,
                        const at::Tensor& dsinks);

}  // namespace lockstep::nn
