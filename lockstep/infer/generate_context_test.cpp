// The texts of one rank from ranks that hold every sequence in parts.
#include <gtest/gtest.h>

#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/infer/generate.h"
#include "support/model_parameters.h"
#include "support/run_ranks.h"

namespace lockstep::infer {
namespace {

using testing::ModelParameters;
using Ids = std::vector<int64_t>;

constexpr int64_t kCapacity = 48;

// More prompts than slots, of 1 to 29 tokens.
std::vector<Ids> prompts_of(const arch::ModelConfig& model) {
  const at::Tensor tokens = testing::random_microbatch(model, 1, 64).tokens;
  std::vector<Ids> prompts;
  for (const int64_t length : {17, 1, 29, 4, 6, 2, 12}) {
    const int64_t* first = tokens.const_data_ptr<int64_t>() + length;
    prompts.emplace_back(first, first + length);
  }
  return prompts;
}

// Greedy and sampled; then a text that goes on where another one was.
std::vector<Ids> texts_of(const arch::ModelConfig& model, model::Decoder& decoder) {
  Generator generator(decoder, model, 3, kCapacity);
  std::vector<Ids> prompts = prompts_of(model), texts;
  const auto add = [&](const GenerateOptions& options) {
    for (Continuation& continuation : generator.generate(prompts, options).continuations) texts.push_back(std::move(continuation.ids));
  };
  add({.max_new_tokens = 9});
  add({.max_new_tokens = 9, .sampling = {.temperature = 1, .top_p = 0.9}});
  prompts.resize(1);
  add({.max_new_tokens = 3});
  prompts[0].insert(prompts[0].end(), {5, 6, 7});
  add({.max_new_tokens = 3, .reuse_prefix = true});
  return texts;
}

TEST(GenerateContext, TheTextsAreThoseOfOneRank) {
  for (const char* preset : {"gpt2-test", "deepseek-test"}) {
    const arch::ModelConfig model = arch::resolve_model({.preset = preset});
    ModelParameters parameters(model, 1);
    model::Decoder alone(model, parameters);
    const std::vector<Ids> expected = texts_of(model, alone);
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(cat(preset, ", cp ", ranks));
      testing::run_ranks(ranks, [&](comm::World& world) {
        ModelParameters own(model, 1);
        const auto communicator = world.all_ranks("cp");
        parallel::ContextGroup context(*communicator, {});
        model::Decoder decoder(model, own, nullptr, nullptr, &context);
        EXPECT_EQ(texts_of(model, decoder), expected) << "rank " << world.rank();
      });
    }
  }
}

}  // namespace
}  // namespace lockstep::infer
