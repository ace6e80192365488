// What goes by the places of tokens, on the GPU against the CPU: rotary and learned positions, masks of dropout, microbatches of parts.
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <numeric>
#include <vector>

#include "gpu/device.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/embedding.h"
#include "lockstep/nn/rotary.h"
#include "lockstep/train/batches.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::gpu_device;
using testing::random;

constexpr int64_t kBatch = 3, kLength = 9, kHere = 4, kWidth = 6;

// The first two tokens of each sequence and the last two; positions begin anew at the third.
Microbatch of_parts(at::Device device) {
  const at::Tensor index = at::tensor({0, 1, 7, 8}, at::kLong).repeat({kBatch, 1});
  Microbatch m{.tokens = index.add(3).to(device), .targets = index.add(4).to(device), .step = 2, .first_sample = 5};
  m.places = std::make_shared<const TokenPlaces>(TokenPlaces{.length = kLength,
                                                             .positions = index.remainder(7).to(device),
                                                             .index = index.to(at::kInt),
                                                             .first_seen = at::zeros_like(index, at::kInt)});
  return m;
}

TEST(Places, RotaryTurnsEachTokenAsOnTheCpu) {
  const at::Tensor positions = of_parts(at::kCPU).places->positions;
  for (const bool apart : {false, true}) {  // sequences that lie end to end, and ones that do not
    const auto heads = [&](const at::Tensor& memory) { return memory.narrow(1, 0, kHere).narrow(2, 1, 3); };
    const at::Tensor here = random("x", {kBatch, kHere + (apart ? 2 : 0), 5, kWidth}), there = here.to(gpu_device());
    const Rotary on_cpu(16, kWidth, 100, here.options()), on_gpu(16, kWidth, 100, there.options());
    on_cpu.apply(heads(here), positions);
    on_gpu.apply(heads(there), positions.to(gpu_device()));
    expect_close(there.cpu(), here, "turned", 1e-6);
    on_cpu.apply_inverse(heads(here), positions);
    on_gpu.apply_inverse(heads(there), positions.to(gpu_device()));
    expect_close(there.cpu(), here, "turned back", 1e-6);
  }
}

TEST(Places, MasksOfDropoutAreTheCpus) {
  const Dropout dropout({.probability = 0.3, .seed = 5, .site = "embed"});
  const Microbatch m = of_parts(gpu_device());
  Dropout::Saved saved;
  dropout.redraw(random("x", {kBatch, kHere, kWidth}).to(gpu_device()), m, saved);
  EXPECT_TRUE(saved.mask.cpu().equal(dropout.mask(m, {kBatch, kHere, kWidth})));
}

TEST(Places, LearnedPositionsAndTheirGradientsAreTheCpus) {
  std::vector<Parameter> gradients;
  std::vector<at::Tensor> outputs;
  for (const at::Device device : {at::Device(at::kCPU), gpu_device()}) {
    const auto there = [&](const char* name, int64_t rows) {
      const Parameter made = testing::parameter(name, {rows, kWidth});
      return Parameter{.value = made.value.to(device), .grad = made.grad.to(device)};
    };
    const Parameter tokens = there("tokens", 20), positions = there("positions", kLength);
    Embedding layer(tokens, positions, Dropout({}));
    std::unique_ptr<Saved> saved;
    outputs.push_back(layer.forward({}, of_parts(device), &saved).cpu());
    layer.backward_input(random("dy", {kBatch, kHere, kWidth}).to(device), *saved);
    layer.backward_weight(*saved);
    gradients.push_back({.value = tokens.grad.cpu(), .grad = positions.grad.cpu()});
  }
  expect_close(outputs[1], outputs[0], "y", 0);
  expect_close(gradients[1].value, gradients[0].value, "tokens", 1e-6);
  expect_close(gradients[1].grad, gradients[0].grad, "positions", 1e-6);
}

TEST(Places, OfMicrobatchesKeepOnTheHostWhatTheHostReads) {
  const auto prefix = std::filesystem::path(::testing::TempDir()) / cat("lockstep-places-", getpid());
  data::TokenFileWriter writer(prefix, 1000);
  std::vector<int32_t> ids(40);
  std::iota(ids.begin(), ids.end(), 0);
  for (int document = 0; document < 5; ++document) writer.add_document(ids);
  writer.finish();
  const data::Sampler sampler(std::make_shared<data::TokenFile>(prefix),
                              {.seq_len = 33, .shuffle = false, .rules = {.mask = true, .reset_positions = true}});
  const train::MicrobatchPart part{.split = {.ranks = 2}, .rank = 1, .places = true, .sequence_targets = true};
  testing::SynchronisationCounter waits;
  const Microbatch there = train::load_microbatch(sampler, {.first = 1, .count = 2}, gpu_device(), part);
  EXPECT_TRUE(waits.take().empty());
  const Microbatch here = train::load_microbatch(sampler, {.first = 1, .count = 2}, at::kCPU, part);
  EXPECT_TRUE(there.tokens.is_cuda() && there.places->positions.is_cuda() && there.sequence_targets.is_cuda());
  EXPECT_TRUE(there.tokens.cpu().equal(here.tokens));
  EXPECT_TRUE(there.targets.cpu().equal(here.targets));
  EXPECT_TRUE(there.places->positions.cpu().equal(here.places->positions));
  EXPECT_TRUE(there.sequence_targets.cpu().equal(here.sequence_targets));
  EXPECT_TRUE(there.places->index.equal(here.places->index));  // both of the host
  EXPECT_TRUE(there.places->first_seen.equal(here.places->first_seen));
  EXPECT_EQ(there.valid_targets, here.valid_targets);
}

}  // namespace
}  // namespace lockstep::nn
