#include "lockstep/plan/evidence/run_memory.h"

#include <algorithm>
#include <cmath>

namespace lockstep::plan {
namespace {

using config::Recompute;

double number(int64_t size) { return static_cast<double>(size); }

// Sizes of a rank, and how it keeps what.
struct Of {
  const arch::ModelConfig& model;
  double tp, pp, cp, dp, ep, etp;
  double hidden, heads, kv_heads, head, ffn, vocab;
  double matrices;   // of an MLP
  double sequence;   // ranks of tp that share rows between layers
  double ranks;      // that hold the same parameters
  double tokens;     // of a microbatch and rank
  bool unfused, fsdp, products;
  Recompute recompute;
};

Of sizes_of(const PublishedRun& run, const RunFrame& frame, const RunChoice& choice) {
  const config::ParallelSection& parallel = frame.config.parallel;
  const arch::ModelConfig& model = frame.model;
  return {.model = model,
          .tp = number(parallel.tp), .pp = number(parallel.pp), .cp = number(parallel.cp), .dp = number(parallel.dp),
          .ep = number(parallel.ep), .etp = number(parallel.etp),
          .hidden = number(model.hidden), .heads = number(model.heads), .kv_heads = number(model.kv_heads), .head = number(model.head_size),
          .ffn = number(model.ffn), .vocab = number(*run.model.vocab),
          .matrices = model.gated_mlp() ? 3.0 : 2.0,
          .sequence = parallel.sequence_parallel ? number(parallel.tp) : 1,
          .ranks = number(parallel.dp) * number(parallel.cp),
          .tokens = number(choice.micro_batch) * number(frame.config.train.seq_len) / number(parallel.cp),
          .unfused = frame.stack.kernels == Kernels::kUnfused, .fsdp = choice.zero >= 2,
          .products = recomputes_products(run), .recompute = choice.recompute};
}

// Parameters of a block, whole.
struct Block {
  double dense = 0, experts = 0;
};
Block block_of(const Of& of, bool dense) {
  const arch::LatentSizes& latent = of.model.latent;
  double attention = of.hidden * of.head * (2 * of.heads + 2 * of.kv_heads);
  if (of.model.has_latent()) {
    const double q = number(latent.q_rank), kv = number(latent.kv_rank);
    const double nope = number(latent.nope), rope = number(latent.rope), value = number(latent.value);
    attention = of.hidden * (q + kv + rope) + of.heads * (q * (nope + rope) + kv * (nope + value) + value * of.hidden);
  }
  if (dense) return {.dense = attention + of.matrices * of.hidden * of.ffn + 2 * of.hidden};
  const arch::ExpertSizes& experts = of.model.experts;
  const double one = of.matrices * of.hidden * number(experts.ffn);
  return {.dense = attention + number(experts.shared) * one + of.hidden * number(experts.count) + 2 * of.hidden,
          .experts = number(experts.count) * one};
}

double attention_bytes(const Of& of) {
  if (!of.model.has_latent()) return 2 * of.hidden / of.sequence + 4 * (of.heads * of.head + of.kv_heads * of.head + of.heads) / of.tp;
  const arch::LatentSizes& latent = of.model.latent;
  const double value = number(latent.value), projected = 2 * of.heads * (2 * number(latent.head()) + value) / of.tp;
  const double of_input = 2 * of.hidden / of.sequence + 2 * number(latent.projected());
  return of_input + (of.recompute == Recompute::kNone ? projected : 0) + (2 * value + 4) * of.heads / of.tp;
}

// Bytes that a block keeps for each token of a microbatch.
double kept(const Of& of, bool dense) {
  if (of.recompute == Recompute::kFull) return 2 * of.hidden / of.sequence;
  if (of.unfused) {
    const double linear = of.sequence > 1 ? 34 * of.hidden / of.tp : 10 * of.hidden + 24 * of.hidden / of.tp;
    const double core = 5 * of.heads * number(of.model.max_seq_len) / of.tp;
    return linear + (of.recompute == Recompute::kNone ? core : 0);
  }
  // Outputs of every second product, and of attention.
  if (of.products && of.recompute == Recompute::kSelective)
    return (4 * of.hidden + 4 * of.heads * of.head + 2 * of.kv_heads * of.head + 2 * of.ffn + 4 * of.heads) / of.tp;
  const bool all = of.recompute == Recompute::kNone;
  const double wide = of.matrices == 3 ? (all ? 6 : 4) : (all ? 4 : 2);  // of a hidden element of an MLP
  const double before = (all ? 4 : 0) * of.hidden / of.sequence + attention_bytes(of) + 2 * of.hidden / of.sequence;
  if (dense) return before + wide * of.ffn / of.tp;
  const arch::ExpertSizes& experts = of.model.experts;
  const double rows = number(experts.per_token) / of.sequence;
  const double routed = rows * (4 * of.hidden + wide * number(experts.ffn)) + 4 * number(experts.count) / of.sequence;
  return before + wide * number(experts.shared * experts.ffn) / of.tp + routed;
}

// Microbatches in flight on the first stage, each of all its layers.
double in_flight(const Of& of, const RunFrame& frame, const RunChoice& choice) {
  if (of.pp == 1) return 1;
  const double microbatches = number(frame.config.train.global_batch) / (of.dp * choice.micro_batch), stages = choice.virtual_stages;
  if (config::v_shaped(frame.schedule)) return of.pp + 1;
  return stages == 1 ? std::min(microbatches, of.pp) : (2 * (of.pp - 1) + (stages - 1) * of.pp + 1) / stages;
}

// Bytes of states for a parameter that `ranks` share.
double state_bytes(const Of& of, int zero, double ranks) {
  if (zero == 0) return 18;
  if (zero == 1) return of.unfused ? 6 + 12 / ranks : 4 + 10 / ranks;
  return zero == 2 ? 2 + 14 / ranks : 16 / ranks;
}

}  // namespace

RunMemoryParts memory_parts(const PublishedRun& run, const RunFrame& frame, const RunChoice& choice) {
  const Of of = sizes_of(run, frame, choice);
  const int layers = static_cast<int>(std::ceil(number(of.model.layers) / of.pp));
  Block stage, largest;
  double kept_bytes = 0, widest = 0;
  Of whole = of;
  whole.recompute = Recompute::kNone;
  whole.unfused = of.unfused && !of.fsdp;
  for (int layer = 0; layer < layers; ++layer) {
    const bool dense = !of.model.has_experts() || of.model.experts.is_dense(layer);
    const Block block = block_of(of, dense);
    stage = {.dense = stage.dense + block.dense / of.tp, .experts = stage.experts + block.experts / (of.ep * of.etp)};
    largest.dense = std::max(largest.dense, block.dense / of.tp + block.experts / of.ep);
    kept_bytes += kept(of, dense);
    widest = std::max(widest, kept(whole, dense));
  }
  const double embedding = of.vocab * of.hidden / of.tp, ends = embedding * (of.pp == 1 ? 2 : 1), in_all = in_flight(of, frame, choice);
  const double of_experts = std::max(1.0, of.ranks * of.tp / (of.ep * of.etp));
  RunMemoryParts parts;
  parts.states = (stage.dense + ends) * state_bytes(of, choice.zero, of.ranks) + stage.experts * state_bytes(of, choice.zero, of_experts);
  parts.activations = of.tokens * kept_bytes * in_all;
  const double logits = of.tokens * of.vocab / of.tp, row = of.tokens * of.hidden;
  if (of.fsdp) {
    if (choice.zero == 3) parts.gathered = of.pp > 1 ? 4 * (stage.dense + ends + stage.experts) : 2 * (3 * largest.dense + embedding);
    // Fused cross-entropy (8 bytes a logit) marks models without a gate; else fp32 logits and their gradient, and once more where ranks share words.
    const double head = of.pp > 1 ? 0 : logits * (of.matrices == 2 ? 8 : of.tp == 1 ? 14 : 18) + (of.tp > 1 ? 4 * row : 0);
    parts.workspace = std::max(2 * of.tokens * widest + (of.tp > 1 ? 8 * row : 0), head);
    return parts;
  }
  if (of.pp > 1) parts.activations += 2 * row / of.sequence * in_all;  // outputs of the stage
  parts.workspace = (of.pp == 1 ? 10 * logits : 0) + (of.recompute == Recompute::kFull ? of.tokens * widest : 0);
  return parts;
}

RunMemory memory_of(const RunMemoryParts& parts, const Stack& stack) {
  const double allocated = parts.sum(), reserved = allocated * (1 + stack.fragmentation);
  return {.allocated = allocated, .reserved = reserved, .device = reserved + stack.reserved};
}

bool fits(const PublishedRun& run, const RunFrame& frame, const RunMemoryParts& parts) {
  RunMemoryParts here = parts;
  if (frame.cluster.device.name.starts_with("GB") && shards_gradients(run)) here.activations = 0;
  return memory_of(here, frame.stack).device <= frame.cluster.device.memory;
}

}  // namespace lockstep::plan
