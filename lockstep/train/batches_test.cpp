#include "lockstep/train/batches.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

// Token i of the stream is i.
data::Sampler counting(int32_t num_tokens, int64_t seq_len) {
  const auto prefix = std::filesystem::path(::testing::TempDir()) / cat("lockstep-batches-", getpid());
  data::TokenFileWriter writer(prefix, 100000);
  std::vector<int32_t> ids(static_cast<size_t>(num_tokens));
  std::iota(ids.begin(), ids.end(), 0);
  writer.add_document(ids);
  writer.finish();
  return data::Sampler(std::make_shared<data::TokenFile>(prefix), {.seq_len = seq_len, .shuffle = false});
}

TEST(Batches, TargetsAreTheNextTokens) {
  const data::Sampler sampler = counting(101, 5);
  const nn::Microbatch microbatch =
      load_microbatch(sampler, {.first = 3, .count = 2, .step = 7, .first_in_batch = 11}, at::kCPU);
  EXPECT_EQ(microbatch.step, 7);
  EXPECT_EQ(microbatch.first_sample, 11);
  EXPECT_EQ(microbatch.valid_targets, 10);
  ASSERT_EQ(microbatch.tokens.sizes().vec(), (std::vector<int64_t>{2, 5}));
  for (int64_t row = 0; row < 2; ++row)
    for (int64_t column = 0; column < 5; ++column) {
      const int64_t token = (3 + row) * 5 + column;
      EXPECT_EQ(microbatch.tokens.const_data_ptr<int64_t>()[row * 5 + column], token);
      EXPECT_EQ(microbatch.targets.const_data_ptr<int64_t>()[row * 5 + column], token + 1);
    }
}

// What layers with experts weigh their losses by.
TEST(Batches, SequencesKnowTheirValidTargetsWhereThereAreExperts) {
  const data::Sampler sampler = counting(101, 5);
  program::Layout layout{.model = {}, .mesh = {}, .global_batch = 4, .micro_batch = 2, .seq_len = 5};
  for (const nn::Microbatch& microbatch : load_step(sampler, layout, 0, {}, at::kCPU)) EXPECT_FALSE(microbatch.sequence_targets.defined());
  layout.model.experts.count = 2;
  const std::vector<nn::Microbatch> microbatches = load_step(sampler, layout, 0, {}, at::kCPU);
  ASSERT_EQ(microbatches.size(), 2u);
  for (const nn::Microbatch& microbatch : microbatches)
    EXPECT_TRUE(microbatch.sequence_targets.equal(at::full({2}, 5.0, at::kDouble)));
}

// Documents of 1, 2, ... 9 tokens, again and again.
data::Sampler documents(const data::SamplerOptions& options) {
  const auto prefix = std::filesystem::path(::testing::TempDir()) / cat("lockstep-batches-documents-", getpid());
  data::TokenFileWriter writer(prefix, 100000);
  for (int32_t begin = 1, size = 1; begin < 400; begin += size, size = size % 9 + 1) {
    std::vector<int32_t> ids(static_cast<size_t>(size));
    std::iota(ids.begin(), ids.end(), begin);
    writer.add_document(ids);
  }
  writer.finish();
  return data::Sampler(std::make_shared<data::TokenFile>(prefix), options);
}

program::Layout layout_of(int cp, const data::SamplerOptions& options) {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kCp] = cp;
  program::Layout layout{.model = {}, .mesh = mesh::Mesh(degrees), .global_batch = 4, .micro_batch = 2, .seq_len = options.seq_len};
  layout.document_mask = options.rules.mask;
  layout.reset_positions = options.rules.reset_positions;
  layout.pack = options.pack;
  layout.model.experts.count = 2;
  return layout;
}

int64_t number(const at::Tensor& rows, int64_t row, int64_t column) { return rows[row][column].item<int64_t>(); }

// What is at each place of whole sequences is what the rank that has it has there; fill counts nowhere.
void expect_part(const nn::Microbatch& part, const std::vector<data::Window>& wholes, std::vector<int64_t>& times_seen) {
  const nn::TokenPlaces& places = *part.places;
  for (int64_t b = 0; b < part.tokens.size(0); ++b) {
    const data::Window& whole = wholes[static_cast<size_t>(b)];
    EXPECT_EQ(part.sequence_targets[b].item<double>(), static_cast<double>(whole.valid_targets()));
    EXPECT_EQ(places.first_seen_of_places.defined(), places.ranks() > 1);
    for (int64_t place = 0; place < places.length && places.ranks() > 1; ++place)
      EXPECT_EQ(number(places.first_seen_of_places, b, place), whole.first_seen[static_cast<size_t>(place)]);
    for (int64_t i = 0; i < part.tokens.size(1); ++i) {
      const int64_t place = number(places.index, b, i);
      const auto at = static_cast<size_t>(place);
      const bool is_fill = place >= places.length;
      EXPECT_EQ(number(part.tokens, b, i), is_fill ? 0 : whole.tokens[at]);
      EXPECT_EQ(number(part.targets, b, i), is_fill ? -100 : whole.targets[at]);
      EXPECT_EQ(number(places.positions, b, i), is_fill ? 0 : whole.positions[at]);
      EXPECT_EQ(number(places.first_seen, b, i), is_fill ? place : whole.first_seen[at]);
      if (!is_fill) ++times_seen[static_cast<size_t>(b * places.length + place)];
    }
  }
}

TEST(Batches, PartsOfSequencesAreTheWholeOnes) {
  for (const config::Pack pack : {config::Pack::kStream, config::Pack::kDocuments})
    for (const data::DocumentRules rules : {data::DocumentRules{}, data::DocumentRules{.mask = true, .reset_positions = true}})
      for (const int cp : {1, 2, 3})
        for (const config::ContextSplit split : {config::ContextSplit::kZigzag, config::ContextSplit::kContiguous}) {
          const data::SamplerOptions options{.seed = 4, .seq_len = 23, .pack = pack, .rules = rules};
          const data::Sampler sampler = documents(options);
          program::Layout layout = layout_of(cp, options);
          layout.context_split = split;
          if (!layout.has_places()) continue;
          for (size_t i = 0; i < 2; ++i) {
            std::vector<data::Window> wholes;
            int64_t valid = 0, counted = 0;
            for (int64_t row = 0; row < 2; ++row) {
              wholes.push_back(sampler.window(5 + 2 * static_cast<int64_t>(i) + row));
              valid += wholes.back().valid_targets();
            }
            std::vector<int64_t> times_seen(2 * 23);
            at::Tensor index;
            for (int rank = 0; rank < cp; ++rank) {
              const nn::Microbatch part = load_step(sampler, layout, rank, {.step = 3, .first_sample = 5}, at::kCPU).at(i);
              EXPECT_EQ(part.step, 3);
              EXPECT_EQ(part.first_sample, 2 * static_cast<int64_t>(i));
              EXPECT_EQ(part.places->rank, rank);
              EXPECT_EQ(part.places->length, 23);
              EXPECT_EQ(part.places->ranks(), cp);
              EXPECT_EQ(part.places->plain, cp == 1 && wholes[0].plain() && wholes[1].plain());
              if (cp > 1) {
                EXPECT_TRUE(part.places->index_of_ranks[static_cast<size_t>(rank)].equal(part.places->index));
                if (rank > 0) {
                  EXPECT_TRUE(part.places->index_of_ranks[0].equal(index)) << "all know the same of each";
                } else {
                  index = part.places->index;
                }
              }
              expect_part(part, wholes, times_seen);
              EXPECT_EQ(part.valid_targets, nn::count_valid(part.targets));
              counted += part.valid_targets;
            }
            EXPECT_EQ(times_seen, std::vector<int64_t>(2 * 23, 1));
            EXPECT_EQ(counted, valid);
          }
        }
}

// Beside documents nothing of a microbatch differs from one that knows of none.
TEST(Batches, PlacesOfPlainSequencesSayNothingNew) {
  const data::Sampler sampler = counting(101, 5);
  const MicrobatchKey key{.first = 3, .count = 2};
  const nn::Microbatch without = load_microbatch(sampler, key, at::kCPU), with = load_microbatch(sampler, key, at::kCPU, {.places = true});
  EXPECT_FALSE(without.places);
  ASSERT_TRUE(with.places);
  EXPECT_TRUE(with.places->plain);
  EXPECT_TRUE(with.tokens.equal(without.tokens));
  EXPECT_TRUE(with.targets.equal(without.targets));
  EXPECT_EQ(with.valid_targets, without.valid_targets);
}

// Pairs of attention are those inside documents, whatever their number in a sequence.
TEST(Batches, FlopsAreThoseOfDocumentsAlone) {
  const arch::ModelConfig model = arch::resolve_model({.preset = "llama-test"});
  const arch::ModelFlops flops(model);
  data::SamplerOptions options{.seq_len = 16, .shuffle = false};
  const double together = step_flops(flops, documents(options), {.first = 1, .count = 2});
  EXPECT_DOUBLE_EQ(together, 2 * 16 * arch::model_flops_per_token(model, 16));
  options.rules.mask = true;
  double apart = 0;  // tokens 16..31 of the stream: 1 of the document of 6, then 7 and 8; tokens 32..47: 4 of 8, 9, 1, 2
  for (const int64_t length : {5, 7, 4, 4, 9, 1, 2}) apart += static_cast<double>(length) * arch::model_flops_per_token(model, length);
  EXPECT_DOUBLE_EQ(step_flops(flops, documents(options), {.first = 1, .count = 2}), apart);
  EXPECT_LT(apart, together);
}

}  // namespace
}  // namespace lockstep::train
