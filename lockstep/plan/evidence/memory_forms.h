// Peak memory of one rank by the forms of two families of software.
#pragma once

#include "lockstep/plan/evidence/memory_stages.h"
#include "lockstep/plan/evidence/run_memory.h"

namespace lockstep::plan {

// Megatron: parameters and gradients whole, zero 0 or 1.
RunMemoryParts replicated_parts(const MemorySizes& of, const MemoryStage& stage, const RunChoice& choice);

// Bytes of the loss for each logit of a rank. From fp32: the logits in bf16, in fp32, as logarithms of probabilities, and their gradient, 14, none
// of which the allocator can put into the place of another; 18 where ranks of tp share the words, for one fp32 value more (PyTorch, loss parallel).
// kFused: in one kernel, bf16 logits and their gradient, 6 with a copy. kOwnFused: with fp32 gradients, 8.
enum class LossKind { kFloat, kFused, kOwnFused };
// By marks of the row. kOwnFused: models without a gate (MPT, the first half of 2023). kFused: kernels of NVIDIA's stacks since 2024, and PyTorch
// since April 2025, which compiles the loss; rows have no date, so devices that came into use after H100 stand for it.
LossKind loss_of(const MemorySizes& of, const RunFrame& frame);

// PyTorch's FSDP and DeepSpeed: gradients, or parameters too, in shares, zero 2 or 3.
RunMemoryParts sharded_parts(const MemorySizes& of, const MemoryStage& stage, const RunChoice& choice, LossKind loss);

}  // namespace lockstep::plan
