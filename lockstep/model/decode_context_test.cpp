// Generation where several ranks hold the tokens of every sequence in parts: the logits of one rank, and a part of its cache.
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/base/text.h"
#include "lockstep/model/decode.h"
#include "lockstep/model/decode_context.h"
#include "lockstep/program/layout.h"
#include "support/model_parameters.h"
#include "support/recompute.h"
#include "support/run_ranks.h"

namespace lockstep::model {
namespace {

using testing::ModelParameters;

constexpr int64_t kCapacity = 40;

struct Texts {
  std::vector<at::Tensor> logits;
  int64_t cache_bytes = 0;
};

// Prompts that are cut over few or many ranks and filled up, prompts of one token and of a few, together and beside texts that go on;
// texts of several lengths token by token; and a text that is taken back and goes on with several tokens.
Texts texts_of(const arch::ModelConfig& model, Decoder& decoder) {
  const at::Tensor tokens = testing::random_microbatch(model, 3, kCapacity).tokens;
  KvCache cache = decoder.new_cache(3, kCapacity);
  Texts texts{.logits = {}, .cache_bytes = cache.bytes()};
  const auto append = [&](const std::vector<int64_t>& slots, int64_t count) {
    std::vector<at::Tensor> rows;
    for (const int64_t slot : slots) rows.push_back(tokens.narrow(0, slot, 1).narrow(1, cache.length(slot), count));
    texts.logits.push_back(decoder.append(at::cat(rows), slots, cache));
  };
  const auto steps = [&](const std::vector<int64_t>& slots, int count) {
    for (int i = 0; i < count; ++i) append(slots, 1);
  };
  append({0}, 19);
  append({1}, 1);
  append({2}, 5);
  steps({2, 0, 1}, 5);
  steps({1}, 2);
  cache.truncate(0, 7);
  append({0}, 3);
  steps({0, 2}, 3);
  cache.truncate(1, 0);
  append({1, 2}, 2);  // one begins, one goes on
  steps({1, 2}, 2);
  cache.truncate(0, 0);
  cache.truncate(1, 0);
  append({1, 0}, 12);
  steps({0, 1}, 3);
  cache.truncate(2, 0);
  append({2}, kCapacity);  // to the last place
  return texts;
}

program::Layout layout_of(const arch::ModelConfig& model, int cp, int tp, int ep) {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kCp] = cp;
  degrees[mesh::Axis::kTp] = tp;
  program::Layout layout{.model = model, .mesh = mesh::Mesh(degrees), .sequence_parallel = false};
  layout.ep = ep;
  return layout;
}

struct Ranks {
  int cp, tp = 1, ep = 1;
  at::ScalarType dtype = at::kFloat;
  config::ContextKind kind = config::ContextKind::kRing;
};

// A decoder of one of several ranks, with all that it refers to.
class RankDecoder {
 public:
  RankDecoder(const arch::ModelConfig& model, const Ranks& ranks, comm::World& world)
      : layout_(layout_of(model, ranks.cp, ranks.tp, ranks.ep)),
        parameters_(model, 1, ranks.dtype, layout_.tensor_shard(world.rank())),
        tp_(world.communicator(layout_.mesh.group(world.rank(), mesh::Axis::kTp), "tp")),
        cp_(world.communicator(layout_.mesh.group(world.rank(), mesh::Axis::kCp), "cp")),
        tensor_(*tp_, {}),
        context_(*cp_, {.kind = ranks.kind}) {
    if (ranks.ep > 1) {
      ep_ = world.communicator(layout_.mesh.group(world.rank(), layout_.expert_ranks()), "ep");
      experts_ = std::make_unique<parallel::ExpertGroup>(*ep_, ranks.ep, 1, parallel::DispatchOptions{.overlap = false});
    }
    decoder_ = std::make_unique<Decoder>(model, parameters_, &tensor_, experts_.get(), &context_);
  }
  Decoder& operator*() { return *decoder_; }

 private:
  program::Layout layout_;
  ModelParameters parameters_;
  std::unique_ptr<comm::Communicator> tp_, cp_, ep_;
  parallel::TensorGroup tensor_;
  parallel::ContextGroup context_;
  std::unique_ptr<parallel::ExpertGroup> experts_;
  std::unique_ptr<Decoder> decoder_;
};

// Logits within `bound`, those of all ranks the same to the bit.
void expect_texts_of_one_rank(const arch::ModelConfig& model, const Texts& expected, const Ranks& ranks, double bound = 1e-5) {
  SCOPED_TRACE(cat(arch::family_name(model.family), ": cp ", ranks.cp, ", tp ", ranks.tp, ", ep ", ranks.ep));
  std::vector<Texts> of_ranks(static_cast<size_t>(ranks.cp * ranks.tp));
  testing::run_ranks(ranks.cp * ranks.tp, [&](comm::World& world) {
    RankDecoder decoder(model, ranks, world);
    of_ranks[static_cast<size_t>(world.rank())] = texts_of(model, *decoder);
  });
  const Texts& first = of_ranks[0];
  ASSERT_EQ(first.logits.size(), expected.logits.size());
  for (size_t i = 0; i < expected.logits.size(); ++i) {
    EXPECT_TRUE(at::allclose(first.logits[i], expected.logits[i], /*rtol=*/0, bound))
        << "step " << i << ": " << first.logits[i].sub(expected.logits[i]).abs().max().item<double>();
    if (ranks.dtype == at::kFloat) {
      EXPECT_TRUE(at::equal(first.logits[i].argmax(-1), expected.logits[i].argmax(-1))) << "step " << i;
    }
    for (const Texts& other : of_ranks) EXPECT_TRUE(at::equal(other.logits[i], first.logits[i])) << "step " << i;
  }
  if (ranks.tp > 1) return;  // which cuts keys and values by heads as well, and latents not at all
  for (const Texts& one : of_ranks)
    EXPECT_EQ(one.cache_bytes * kCapacity, expected.cache_bytes * TokenOwners::most(kCapacity, ranks.cp));
}

Texts texts_of_one_rank(const arch::ModelConfig& model, at::ScalarType dtype = at::kFloat) {
  ModelParameters parameters(model, 1, dtype);
  Decoder alone(model, parameters);
  return texts_of(model, alone);
}

void expect_texts_of_one_rank(const std::string& preset, const std::vector<Ranks>& layouts) {
  const arch::ModelConfig model = arch::resolve_model({.preset = preset});
  const Texts expected = texts_of_one_rank(model);
  for (const Ranks& ranks : layouts) expect_texts_of_one_rank(model, expected, ranks);
}

TEST(DecodeContext, Gpt2SaysWhatOneRankSays) { expect_texts_of_one_rank("gpt2-test", {{.cp = 2}, {.cp = 3}, {.cp = 4}, {.cp = 2, .tp = 2}}); }

TEST(DecodeContext, LlamaSaysWhatOneRankSays) {
  expect_texts_of_one_rank("llama-test", {{.cp = 2}, {.cp = 3}, {.cp = 4}, {.cp = 2, .tp = 2},
                                          {.cp = 3, .kind = config::ContextKind::kAllGather}});
}

TEST(DecodeContext, LatentsAreMergedToo) {
  expect_texts_of_one_rank("deepseek-test", {{.cp = 2, .ep = 2}, {.cp = 3}, {.cp = 4}, {.cp = 2, .tp = 2}});
}

TEST(DecodeContext, ExpertsLieOverTheSameRanks) {
  expect_texts_of_one_rank("mixtral-test", {{.cp = 2, .ep = 2}, {.cp = 3}, {.cp = 4, .ep = 2}, {.cp = 2, .tp = 2, .ep = 4}});
}

// A model whose tokens see 6 tokens: prompts beyond the window at once and token by token, on one rank and on several.
TEST(DecodeContext, Windows) {
  arch::ModelConfig model = testing::few_blocks(arch::Family::kLlama, 2, /*dropout=*/0);
  model.sliding_window = 6;
  ModelParameters parameters(model, 1);
  Decoder alone(model, parameters);
  const at::Tensor tokens = testing::random_microbatch(model, 1, 20).tokens;
  KvCache cache = alone.new_cache(2, 20);
  const std::vector<int64_t> first = {0}, second = {1};
  const at::Tensor at_once = alone.append(tokens, first, cache);
  at::Tensor by_token = alone.append(tokens.narrow(1, 0, 9), second, cache);
  for (int64_t s = 9; s < 20; ++s) by_token = alone.append(tokens.narrow(1, s, 1), second, cache);
  EXPECT_TRUE(at::allclose(by_token, at_once, /*rtol=*/0, 1e-5));
  model.sliding_window = 0;
  Decoder sees_all(model, parameters);
  cache = sees_all.new_cache(1, 20);
  EXPECT_FALSE(at::allclose(sees_all.append(tokens, first, cache), at_once, /*rtol=*/0, 1e-4));
  model.sliding_window = 6;
  const Texts expected = texts_of(model, alone);
  for (const Ranks& ranks : {Ranks{.cp = 2}, Ranks{.cp = 3}}) expect_texts_of_one_rank(model, expected, ranks);
}

// Parts are merged in fp32 and rounded to bf16 once, as on one rank: logits differ by roundings (2^-9 of a number) of what comes behind.
TEST(DecodeContext, Bfloat16) {
  for (const config::ModelSection& section : {config::ModelSection{.preset = "llama-test"},
                                              config::ModelSection{.preset = "llama-test", .kv_heads = 12, .q_lora_rank = 24, .kv_lora_rank = 16,
                                                                   .qk_nope_head_dim = 4, .qk_rope_head_dim = 4, .v_head_dim = 6}}) {
    const arch::ModelConfig model = arch::resolve_model(section);
    const Texts expected = texts_of_one_rank(model, at::kBFloat16);
    double largest = 0;
    for (const at::Tensor& logits : expected.logits) largest = std::max(largest, logits.abs().max().item<double>());
    expect_texts_of_one_rank(model, expected, {.cp = 2, .dtype = at::kBFloat16}, /*bound=*/0.03 * largest);
  }
}

// Whatever is cut, added and taken back, no rank has more than new_cache makes room for.
TEST(TokenOwners, NoRankHasMoreThanItsShareAndOne) {
  const RandomStream random(5, "owners");
  uint64_t draw = 0;
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random.bits(draw++) % static_cast<uint64_t>(end)); };
  for (int ranks = 2; ranks <= 5; ++ranks) {
    for (int64_t capacity = 1; capacity <= 40; ++capacity) {
      TokenOwners owners(ranks);
      for (int turn = 0; turn < 20; ++turn) {
        const int64_t room = capacity - owners.length(), count = room > 0 ? 1 + below(room) : 0;
        if (owners.length() == 0 && count >= 2 * ranks) {
          const int64_t piece = (count + 2 * ranks - 1) / (2 * ranks);
          for (int64_t token = 0; token < count; ++token) owners.add(static_cast<int>(std::min(token / piece, 2 * ranks - 1 - token / piece)));
        } else {
          for (int64_t token = 0; token < count; ++token) owners.add_to_emptiest();
        }
        for (int rank = 0; rank < ranks; ++rank) EXPECT_LE(owners.held(rank), TokenOwners::most(capacity, ranks)) << capacity << " over " << ranks;
        owners.truncate(below(2) == 0 ? 0 : below(owners.length() + 1));
      }
    }
  }
  TokenOwners even(3);
  for (int64_t token = 0; token < 7; ++token) EXPECT_EQ(even.add_to_emptiest(), token % 3);
}

}  // namespace
}  // namespace lockstep::model
