#include <algorithm>

#include "lockstep/plan/evidence/memory_forms.h"

namespace lockstep::plan {
namespace {

double loss_bytes(LossKind loss, bool shared) {
  if (loss == LossKind::kFused) return 6;
  if (loss == LossKind::kOwnFused) return 8;
  return shared ? 18 : 14;
}

// Rows whole between ranks of tp while a block runs: what is gathered, its copy in order, and a sum before it is scattered; of asynchronous ones
// the sum alone.
double whole_rows(const MemorySizes& of) { return of.tp == 1 ? 0 : of.async ? 1 : 3; }

// What a block's forward has beside what it keeps: outputs of the two products of its MLP, one more without a compiler, the residual and its norm.
// The allocator cannot join them for the larger tensors of the loss.
double forward_bytes(const MemorySizes& of) {
  const double wide = of.model.has_experts() ? std::max(of.ffn, static_cast<double>(of.model.experts.per_token * of.model.experts.ffn)) : of.ffn;
  return of.tokens * ((of.eager ? 6 : 4) * wide / of.tp + 4 * of.hidden / of.sequence + 2 * whole_rows(of) * of.hidden);
}

// A block's outputs and their gradients, and rows that are whole.
double backward_bytes(const MemorySizes& of, const MemoryStage& stage) {
  return of.tokens * (2 * stage.working + (of.tp > 1 ? 8 * of.hidden : 0)) + 2 * stage.largest;
}

// Parameters of the blocks are gathered one ahead. FSDP 2 (models with a gate) copies out of the buffer of the gather, which is on a stream of its
// own, so that both stay reserved; embedding and head are one unit that stays whole.
double gathered_bytes(const MemorySizes& of, const MemoryStage& stage) {
  const double ends = stage.first + stage.last, blocks = 2 * stage.largest;
  return of.matrices == 3 ? 2 * (ends + stage.largest + std::max(ends, blocks)) : 2 * (ends + blocks);
}

// Under a pipeline parameters stay whole, and gradients too, in fp32, until the last microbatch (PyTorch, torch.distributed.pipelining). Of chunks
// that run backward one after the other, because there are no more microbatches than stages, the later has reduced its gradients before.
double whole_bytes(const MemorySizes& of, const MemoryStage& stage) {
  const double share = of.microbatches <= of.pp ? stage.late_share : 1;
  return (2 + 4 * share) * stage.parameters() + 2 * 2 * stage.largest;
}

// Outputs of all microbatches stay until the end of the step; buffers receive what comes in, of which those in flight are inputs of blocks, and
// gradients of what goes out (torch.distributed.pipelining).
double sent_bytes(const MemorySizes& of, const MemoryStage& stage) {
  const double rows = 2 * of.tokens * of.hidden / of.sequence, logits = 2 * of.tokens * of.vocab / of.tp, all = of.microbatches * stage.chunks;
  return rows * (2 * all + (stage.is_first ? 0 : all - stage.in_flight)) + (stage.is_last ? logits * of.microbatches : 0);
}

}  // namespace

LossKind loss_of(const MemorySizes& of, const RunFrame& frame) {
  const DeviceKind& device = frame.cluster.device;
  const bool later = device.generation == Generation::kHopper && device.name.starts_with("H200");
  if (frame.stack.kernels == Kernels::kCurrent || later) return LossKind::kFused;
  return of.matrices == 2 ? LossKind::kOwnFused : LossKind::kFloat;
}

RunMemoryParts sharded_parts(const MemorySizes& of, const MemoryStage& stage, const RunChoice& choice, LossKind loss) {
  const double ends = stage.first + stage.last;
  const auto states = [&](double parameters, double ranks) { return parameters * (choice.zero == 2 ? 2 + 14 / ranks : 16 / ranks); };
  RunMemoryParts parts{.states = states(stage.dense + ends, of.ranks) + states(stage.experts, of.expert_ranks),
                       .activations = of.tokens * stage.kept};
  if (choice.zero == 3) parts.gathered = of.pp > 1 ? whole_bytes(of, stage) : gathered_bytes(of, stage);
  if (of.pp > 1) parts.activations += sent_bytes(of, stage);
  const double logits = of.tokens * of.vocab / of.tp, rows = of.tp > 1 ? 2 * of.tokens * of.hidden : 0;
  const double head = stage.is_last ? logits * loss_bytes(loss, of.tp > 1) + rows : 0, forward = forward_bytes(of);
  parts.workspace = std::max(head + forward, backward_bytes(of, stage));
  // Gradients are on the stream of their reduction, whose blocks no other takes; they are there only after the loss.
  parts.cached = of.pp > 1 ? 0 : forward + (loss == LossKind::kFloat ? 2 * logits : 0);
  return parts;
}

}  // namespace lockstep::plan
