// Sharded layers by themselves, without an engine: a program of your own needs ranks, a TensorGroup of them and sizes. Four ranks - threads
// here - share an MLP and a vocabulary, and compare what they compute with whole layers. Less than a second.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/remainder.h>

#include <cstdio>
#include <future>

#include "lockstep/comm/shared_memory.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/parallel/tensor/cross_entropy.h"
#include "lockstep/parallel/tensor/linear.h"
#include "lockstep/parallel/tensor/own_parameter.h"
#include "lockstep/parallel/tensor/vocabulary.h"

using namespace lockstep;

constexpr int kRanks = 4;
constexpr int64_t kModel = 32, kInner = 90, kVocab = 101, kBatch = 2, kSeq = 8;  // sizes need not divide

// Forward and backward: tokens -> embedding -> up -> gelu -> down -> lone linear to logits -> loss. With a group of one all of it is
// here, and nothing is sent.
struct Outcome {
  at::Tensor loss, dx, grad;  // of the embedding's output; of the weight of `down`, this rank's part
};
Outcome step(parallel::TensorGroup& group) {
  // Parameters are parts of whole ones: a name and an index make a value, not the rank that holds it.
  const nn::Parameter table = own_parameter({.name = "embed", .shape = {kVocab, kModel}, .cut_dim = 0, .init_std = 1}, group);
  parallel::VocabParallelEmbedding embed(table, {}, nn::Dropout({}), group, kVocab);
  parallel::ColumnParallelLinear up(group, {.name = "up", .in = kModel, .out = kInner, .init_std = 0.2});
  parallel::RowParallelLinear down(group, {.name = "down", .in = kInner, .out = kModel, .init_std = 0.2});
  parallel::ColumnParallelLinear head(group, {.name = "head", .in = kModel, .out = kVocab, .bias = false, .init_std = 0.2});
  parallel::VocabParallelCrossEntropy cross_entropy(group, kVocab);

  const at::Tensor ids = at::remainder(at::arange(kBatch * kSeq, at::kLong) * 7, kVocab);
  const at::Tensor x = embed.forward({}, {.tokens = ids.view({kBatch, kSeq}), .targets = {}}, nullptr);  // all_reduce -> [B, S, D]
  // Each linear keeps in its Saved what its own backward needs; between the two a rank has its columns alone, [B, S, F/4].
  nn::Linear::Saved of_up, of_down, of_head;
  const at::Tensor h = up.forward(x, &of_up);
  const at::Tensor y = down.forward(at::gelu(h), &of_down);  // all_reduce -> [B, S, D]
  const at::Tensor logits = nn::flatten_rows(head.forward(y, &of_head));  // [B S, V/4]
  const at::Tensor loss = cross_entropy.loss_(logits, at::remainder(ids + 1, kVocab));  // all_gather of 3 numbers a row
  // `logits` hold their gradient now.
  const at::Tensor dy = head.backward_input(logits.view({kBatch, kSeq, -1}), of_head);  // all_reduce of dx
  const at::Tensor dh = at::gelu_backward(down.backward_input(dy, of_down), h);
  const at::Tensor dx = up.backward_input(dh, of_up);  // all_reduce of dx
  for (const auto& [layer, saved] : {std::pair<nn::Linear*, nn::Linear::Saved*>{&head, &of_head}, {&down, &of_down}, {&up, &of_up}})
    layer->backward_weight(*saved);  // adds to weight().grad
  return {.loss = loss, .dx = dx, .grad = down.weight().grad};
}

// The lone linear: one layer whose whole output every rank wants.
at::Tensor lone(parallel::TensorGroup& group, const at::Tensor& x) {
  parallel::ColumnParallelLinear layer(group, {.name = "lone", .in = kModel, .out = 7}, {.gather_output = true});
  return layer.forward(x, nullptr);  // all_gather -> [B, S, 7]
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

bool run_rank(comm::World& world) {
  at::set_num_threads(1);
  const auto all = world.all_ranks("tp"), alone = world.communicator({world.rank()}, "alone");
  parallel::TensorGroup group(*all, {}), whole(*alone, {});
  const Outcome parts = step(group), one = step(whole);
  const mesh::Range columns = mesh::shard_range(kInner, kRanks, world.rank());
  const double errors[] = {difference(parts.loss, one.loss), difference(parts.dx, one.dx),
                           difference(parts.grad, one.grad.narrow(1, columns.begin, columns.size())),
                           difference(lone(group, one.dx), lone(whole, one.dx))};
  if (world.rank() == 0)
    std::printf("%d ranks and one differ by: loss %.1e, dx %.1e, gradient of down %.1e, the lone linear %.1e\n", kRanks, errors[0],
                errors[1], errors[2], errors[3]);
  for (const double error : errors)
    if (!(error < 1e-5)) return false;
  return true;
}

int main() try {
  const auto region = std::make_shared<const launch::SharedRegion>(launch::SharedRegion::anonymous(launch::region_bytes(kRanks)));
  std::vector<std::future<bool>> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.push_back(std::async(std::launch::async, [&region, rank] {
      comm::SharedMemoryWorld world(region, rank, kRanks);
      return run_rank(world);
    }));
  bool same = true;
  for (std::future<bool>& rank : ranks) same = rank.get() && same;
  return same ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
