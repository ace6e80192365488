#include "lockstep/plan/evidence/memory_sizes.h"

#include <algorithm>

namespace lockstep::plan {
namespace {

using config::Recompute;

double number(int64_t size) { return static_cast<double>(size); }

// Of a number that a linear reads.
double input_byte(const MemorySizes& of) { return of.fp8 ? 1 : 2; }

double attention_bytes(const MemorySizes& of) {
  if (!of.model.has_latent()) {
    const double core = 4 * (of.heads * of.head + of.kv_heads * of.head + of.heads) / of.tp, output = of.fp8 ? of.heads * of.head / of.tp : 0;
    return input_byte(of) * of.hidden / of.sequence + core + output;
  }
  const arch::LatentSizes& latent = of.model.latent;
  const double value = number(latent.value), projected = 2 * of.heads * (2 * number(latent.head()) + value) / of.tp;
  const double of_input = input_byte(of) * of.hidden / of.sequence + 2 * number(latent.projected());
  return of_input + (of.recompute == Recompute::kNone ? projected : 0) + (2 * value + 4) * of.heads / of.tp;
}

// PyTorch's selective checkpoints: the input, the outputs of every second product and of attention. Compiled code drops the output of the last
// product, which no gradient reads.
double products_bytes(const MemorySizes& of) {
  const double attention = 4 * of.heads * of.head + 2 * of.kv_heads * of.head + 4 * of.heads;
  return ((of.eager ? 4 : 2) * of.hidden + attention + 2 * of.ffn) / of.tp;
}

}  // namespace

MemorySizes memory_sizes(const PublishedRun& run, const RunFrame& frame, const RunChoice& choice) {
  const config::ParallelSection& parallel = frame.config.parallel;
  const arch::ModelConfig& model = frame.model;
  const double ranks = number(parallel.dp) * number(parallel.cp), experts = number(parallel.ep) * number(parallel.etp);
  return {.model = model,
          .tp = number(parallel.tp), .pp = number(parallel.pp), .cp = number(parallel.cp), .dp = number(parallel.dp),
          .ep = number(parallel.ep), .etp = number(parallel.etp),
          .hidden = number(model.hidden), .heads = number(model.heads), .kv_heads = number(model.kv_heads), .head = number(model.head_size),
          .ffn = number(model.ffn), .vocab = number(*run.model.vocab),
          .matrices = model.gated_mlp() ? 3.0 : 2.0,
          .sequence = parallel.sequence_parallel ? number(parallel.tp) : 1,
          .ranks = ranks,
          .expert_ranks = std::max(1.0, ranks * number(parallel.tp) / experts),
          .tokens = number(choice.micro_batch) * number(frame.config.train.seq_len) / number(parallel.cp),
          .microbatches = std::max(1.0, number(frame.config.train.global_batch) / (number(parallel.dp) * choice.micro_batch)),
          .unfused = frame.stack.kernels == Kernels::kUnfused, .products = recomputes_products(run),
          .fp8 = frame.options.linears == Linears::kFp8 && frame.stack.kernels == Kernels::kCurrent, .fp16 = run.layout.precision == "fp16",
          .eager = run.eager, .async = run.async,
          .recompute = choice.recompute};
}

BlockParameters block_parameters(const MemorySizes& of, bool dense) {
  const arch::LatentSizes& latent = of.model.latent;
  double attention = of.hidden * of.head * (2 * of.heads + 2 * of.kv_heads);
  if (of.model.has_latent()) {
    const double q = number(latent.q_rank), kv = number(latent.kv_rank);
    const double nope = number(latent.nope), rope = number(latent.rope), value = number(latent.value);
    attention = of.hidden * (q + kv + rope) + of.heads * (q * (nope + rope) + kv * (nope + value) + value * of.hidden);
  }
  if (dense) return {.dense = (attention + of.matrices * of.hidden * of.ffn + 2 * of.hidden) / of.tp};
  const arch::ExpertSizes& experts = of.model.experts;
  const double one = of.matrices * of.hidden * number(experts.ffn);
  return {.dense = (attention + number(experts.shared) * one + of.hidden * number(experts.count) + 2 * of.hidden) / of.tp,
          .experts = number(experts.count) * one / (of.ep * of.etp)};
}

double kept_bytes(const MemorySizes& of, bool dense) {
  if (of.recompute == Recompute::kFull) return 2 * of.hidden / of.sequence;
  if (of.unfused) {
    const double linear = of.sequence > 1 ? 34 * of.hidden / of.tp : 10 * of.hidden + 24 * of.hidden / of.tp;
    const double core = 5 * of.heads * number(of.model.max_seq_len) / of.tp;
    return linear + (of.recompute == Recompute::kNone ? core : 0);
  }
  if (of.products && of.recompute == Recompute::kSelective) return products_bytes(of);
  const bool all = of.recompute == Recompute::kNone;
  const double wide = (of.matrices == 3 ? 4 : 2) + (all ? input_byte(of) : 0);  // of a hidden element of an MLP
  const double before = (all ? 4 : 0) * of.hidden / of.sequence + attention_bytes(of) + input_byte(of) * of.hidden / of.sequence;
  if (dense) return before + wide * of.ffn / of.tp;
  const arch::ExpertSizes& experts = of.model.experts;
  const double rows = number(experts.per_token) / of.sequence;
  const double routed = rows * ((2 + input_byte(of)) * of.hidden + wide * number(experts.ffn)) + 4 * number(experts.count) / of.sequence;
  return before + wide * number(experts.shared * experts.ffn) / of.tp + routed;
}

double working_bytes(const MemorySizes& of, bool dense) {
  MemorySizes whole = of;
  whole.recompute = Recompute::kNone;
  return kept_bytes(whole, dense);
}

}  // namespace lockstep::plan
