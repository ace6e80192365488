// Sizes of a rank of a published run, and the bytes that its blocks keep: what the closed forms of run_memory.h are made of.
#pragma once

#include "lockstep/plan/evidence/run_layout.h"

namespace lockstep::plan {

struct MemorySizes {
  const arch::ModelConfig& model;
  double tp, pp, cp, dp, ep, etp;
  double hidden, heads, kv_heads, head, ffn, vocab;
  double matrices;      // of an MLP
  double sequence;      // ranks of tp that share rows between blocks
  double ranks;         // that hold the same parameters
  double expert_ranks;  // that hold the same experts
  double tokens;        // of a microbatch and rank
  double microbatches;  // of a step and rank
  bool unfused, products;
  bool fp8;      // inputs of linears are kept in 1 byte, beside what attention keeps in 2 (Transformer Engine)
  bool fp16;     // gradients of 2 bytes: nothing is summed in fp32 before the optimizer
  bool eager;    // operations one by one, else compiled
  bool async;    // tensor parallelism whose gathers are beside the allocator (symmetric memory)
  config::Recompute recompute;
};
MemorySizes memory_sizes(const PublishedRun& run, const RunFrame& frame, const RunChoice& choice);

// Parameters of a block of one rank of tp, etp and ep.
struct BlockParameters {
  double dense = 0, experts = 0;
  double sum() const { return dense + experts; }
};
BlockParameters block_parameters(const MemorySizes& of, bool dense);

// Bytes that a block keeps from forward to backward for each token of a microbatch.
double kept_bytes(const MemorySizes& of, bool dense);
// The same of a block that recomputes nothing: its outputs once more, which are alive while it runs backward.
double working_bytes(const MemorySizes& of, bool dense);

}  // namespace lockstep::plan
