// Peak memory of a published run by closed forms of the software that ran it. The program's own prediction (program/predict/memory.h) is of what
// this library keeps; Megatron and PyTorch's FSDP keep other gradients, other activations and whole logits.
#pragma once

#include "lockstep/plan/evidence/measured_run.h"
#include "lockstep/plan/evidence/run_layout.h"

namespace lockstep::plan {

// Bytes of the rank that needs most, as each kind of measurement counts them.
struct RunMemory {
  double allocated = 0;
  double reserved = 0;  // with what the allocator loses: Stack::fragmentation
  double device = 0;    // with context and communicators: Stack::reserved
  double of(MemoryKind kind) const { return kind == MemoryKind::kAllocated ? allocated : kind == MemoryKind::kReserved ? reserved : device; }
};

// What they consist of, bytes of the rank of a pipeline that needs most.
struct RunMemoryParts {
  double states = 0;       // parameters, gradients, optimizer
  double gathered = 0;     // parameters, and under a pipeline gradients, that are whole for a while
  double activations = 0;  // kept from forward to backward, of all microbatches in flight
  double workspace = 0;    // of one block, or of the head, beside them
  double cached = 0;       // of all these, what the allocator keeps of tensors that are gone when most is allocated
  double sum() const { return states + gathered + activations + workspace; }
};
// States and activations of Megatron: Narayanan et al. 2021, Korthikanti et al. 2022 (sections 4, 5) for unfused kernels, 8 h + 4 a D + 4 k D + 6 f +
// 4 a bytes a token and block for flash; gradients and remainders of master weights in bf16 where kernels are not unfused. Of FSDP: 16 bytes of
// states for each parameter over all ranks, blocks gathered one ahead, the loss (memory_forms.h).
RunMemoryParts memory_parts(const PublishedRun& run, const RunFrame& frame, const RunChoice& choice);
RunMemory memory_of(const RunMemoryParts& parts, const Stack& stack);

// Whether the device has that much. Where processor and device share a fast link (GB200, GB300), FSDP may keep activations on the host.
bool fits(const PublishedRun& run, const RunFrame& frame, const RunMemoryParts& parts);

}  // namespace lockstep::plan
