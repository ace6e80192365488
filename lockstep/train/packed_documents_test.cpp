// A sequence of several documents is as each document alone: losses and gradients of the packed pass, with masks and positions, against
// the sums over passes of one document each, which know nothing of either.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/data/test_files.h"
#include "lockstep/engine/test_values.h"
#include "lockstep/model/model.h"
#include "lockstep/train/batches.h"
#include "lockstep/train/test_context.h"
#include "support/model_parameters.h"
#include "support/recompute.h"

namespace lockstep::train {
namespace {

using arch::Recompute;
using engine::testing::expect_same_gradients;
using engine::testing::Tensors;
using lockstep::testing::ModelParameters;
using lockstep::testing::WeightGradients;
using testing::Fields;
using testing::operator+;

constexpr double kBound = 1e-5;

arch::ModelConfig model_of(const std::string& preset) {
  config::ModelSection section;
  section.preset = preset;
  section.layers = 2;
  return arch::resolve_model(section);
}

// Losses of experts are means over sequences, so they do depend on packing.
constexpr config::MoeSection kNoBalance = {.balance = config::Balance::kNone};

struct Sums {
  double loss = 0;
  Tensors gradients{};
};

Sums run(const arch::ModelConfig& model, const std::vector<nn::Microbatch>& microbatches, Recompute choice = Recompute::kNone) {
  ModelParameters parameters(model, /*seed=*/11);
  const auto layers = model::build_layers(model, parameters, {.moe = kNoBalance});
  Sums sums;
  for (nn::Microbatch microbatch : microbatches) {
    microbatch.sequence_targets = nn::count_valid_of_sequences(microbatch.targets);
    sums.loss += lockstep::testing::forward_backward(layers, microbatch, std::vector<Recompute>(static_cast<size_t>(model.layers), choice),
                                                     WeightGradients::kInB);
  }
  for (const arch::ParamSpec& spec : parameters.table())
    if (spec.name.find("router.bias") == std::string::npos) sums.gradients[spec.name] = parameters.parameter(spec.name).grad.clone();
  return sums;
}

void expect_same(const Sums& packed, const Sums& alone, const std::string& where) {
  EXPECT_GT(alone.loss, 1) << where;
  EXPECT_NEAR(packed.loss, alone.loss, kBound * alone.loss) << where;
  expect_same_gradients(packed.gradients, alone.gradients, kBound, where);
}

// [begin, end) of each document of a sequence, by what its tokens are told: those that fill up are documents of one token.
std::vector<mesh::Range> documents_of(const nn::Microbatch& microbatch, int64_t row) {
  const int64_t length = microbatch.tokens.size(1);
  const int32_t* const first = microbatch.places->first_seen.const_data_ptr<int32_t>() + row * length;
  std::vector<mesh::Range> documents;
  for (int64_t begin = 0, end = 1; begin < length; begin = end++) {
    while (end < length && first[end] == begin) ++end;
    documents.push_back({begin, end});
  }
  return documents;
}

// Each document as a microbatch of its own, without places.
std::vector<nn::Microbatch> alone(const nn::Microbatch& packed) {
  std::vector<nn::Microbatch> all;
  for (int64_t row = 0; row < packed.tokens.size(0); ++row)
    for (const mesh::Range& range : documents_of(packed, row)) {
      const auto cut = [&](const at::Tensor& whole) { return whole.narrow(0, row, 1).narrow(1, range.begin, range.size()).clone(); };
      all.push_back({.tokens = cut(packed.tokens), .targets = cut(packed.targets)});
    }
  return all;
}

// Sequences of documents of these lengths, each with random tokens; the last token of a document has no next one.
nn::Microbatch packed_of(const arch::ModelConfig& model, const std::vector<std::vector<int64_t>>& lengths) {
  const auto rows = static_cast<int64_t>(lengths.size());
  const int64_t length = std::accumulate(lengths[0].begin(), lengths[0].end(), int64_t{0});
  nn::Microbatch packed = lockstep::testing::random_microbatch(model, rows, length, /*ignore_every=*/6);
  auto places = std::make_shared<nn::TokenPlaces>();
  places->length = length;
  places->positions = at::empty_like(packed.tokens);
  places->index = at::empty({rows, length}, at::kInt);
  places->first_seen = at::empty({rows, length}, at::kInt);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t place = row * length;
    for (const int64_t of_document : lengths[static_cast<size_t>(row)]) {
      for (int64_t i = 0; i < of_document; ++i, ++place) {
        places->positions.data_ptr<int64_t>()[place] = i;
        places->index.data_ptr<int32_t>()[place] = static_cast<int32_t>(place - row * length);
        places->first_seen.data_ptr<int32_t>()[place] = static_cast<int32_t>(place - row * length - i);
      }
      packed.targets.data_ptr<int64_t>()[place - 1] = -100;
    }
    EXPECT_EQ(place, (row + 1) * length) << "sequences of one length";
  }
  packed.places = std::move(places);
  return packed;
}

TEST(PackedDocuments, AreAsEachDocumentAlone) {
  for (const char* preset : {"gpt2-test", "llama-test", "mixtral-test", "deepseek-test"}) {
    const arch::ModelConfig model = model_of(preset);
    // 40 tokens; the kernel's blocks of queries and keys begin and end inside documents.
    const nn::Microbatch packed = packed_of(model, {{1, 7, 1, 20, 2, 9}, {40}, {13, 27}, {39, 1}});
    const Sums expected = run(model, alone(packed));
    for (const Recompute choice : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
      expect_same(run(model, {packed}, choice), expected, cat(preset, ", recompute ", static_cast<int>(choice)));
  }
}

// Longer than the blocks of the kernel in every direction, with blocks that no query sees.
TEST(PackedDocuments, OfSeveralBlocks) {
  arch::ModelConfig model = model_of("llama-test");
  model.max_seq_len = 700;
  const nn::Microbatch packed = packed_of(model, {{300, 1, 64, 128, 7, 200}, {65, 63, 129, 443}});
  expect_same(run(model, {packed}), run(model, alone(packed)), "700 tokens");
}

// What would not be: tokens that see their neighbours, and positions that go on.
TEST(PackedDocuments, ThatSeeEachOtherAreNot) {
  const arch::ModelConfig model = model_of("gpt2-test");
  const nn::Microbatch packed = packed_of(model, {{5, 11}, {9, 7}});
  const Sums expected = run(model, alone(packed));
  const auto error_with = [&](const auto& change) {
    auto places = std::make_shared<nn::TokenPlaces>(*packed.places);
    for (at::Tensor* tensor : {&places->positions, &places->index, &places->first_seen}) *tensor = tensor->clone();
    change(*places);
    nn::Microbatch changed = packed;
    changed.places = std::move(places);
    const Sums found = run(model, {changed});
    return engine::testing::error_of(found.gradients.at("blocks.0.attention.v.weight"), expected.gradients.at("blocks.0.attention.v.weight"));
  };
  EXPECT_LE(error_with([](nn::TokenPlaces&) {}), kBound);
  EXPECT_GT(error_with([](nn::TokenPlaces& places) { places.first_seen.zero_(); }), 100 * kBound);
  EXPECT_GT(error_with([](nn::TokenPlaces& places) { places.positions.copy_(places.index); }), 100 * kBound);
}

// --- What training loads.

struct Loaded {
  program::Layout layout;
  std::vector<nn::Microbatch> microbatches;
};

Loaded load(const Fields& data, const std::string& preset) {
  std::vector<config::Override> overrides = {{"model.preset", preset},     {"model.vocab_size", "512"},  {"train.steps", "10"},
                                             {"train.seq_len", "24"},      {"train.global_batch", "16"}, {"train.micro_batch", "4"},
                                             {"train.threads", "1"}};
  for (const std::string& field : data) overrides.push_back({field.substr(0, field.find('=')), field.substr(field.find('=') + 1)});
  config::LoadedConfig loaded = config::load_config({}, overrides);
  Loaded result{.layout = program::layout_of(loaded, 1), .microbatches = {}};
  result.microbatches = load_step(open_training_data(loaded.config, result.layout), result.layout, 0, {}, at::kCPU);
  return result;
}

// The stream of the file and, of each of its tokens, whether the next one is of the same document.
struct File {
  std::vector<int64_t> tokens;
  std::vector<bool> goes_on;
};

File file_of(const std::string& prefix) {
  const data::TokenFile source(prefix);
  File file{.tokens = std::vector<int64_t>(static_cast<size_t>(source.num_tokens())), .goes_on = {}};
  source.read(0, file.tokens);
  for (const int32_t length : source.index().lengths)
    for (int32_t i = 0; i < length; ++i) file.goes_on.push_back(i + 1 < length);
  return file;
}

// Whether tokens and targets are those of the file from `first` on, up to the end of a document or of the sequence.
bool is_at(const File& file, size_t first, const nn::Microbatch& document, bool ends_sequence) {
  const int64_t length = document.tokens.numel();
  if (first + static_cast<size_t>(length) > file.tokens.size()) return false;
  for (int64_t i = 0; i < length; ++i) {
    const size_t place = first + static_cast<size_t>(i);
    const bool last = i + 1 == length;
    const int64_t target = document.targets.const_data_ptr<int64_t>()[i];
    if (file.tokens[place] != document.tokens.const_data_ptr<int64_t>()[i]) return false;
    if (!last && !file.goes_on[place]) return false;
    const int64_t next = file.goes_on[place] ? file.tokens[place + 1] : -100;
    const bool cut = last && file.goes_on[place];  // the sequence ends inside the document
    if (target != next && !(cut && target == -100)) return false;
    if (cut && !ends_sequence) return false;
  }
  return true;
}

// Of what is loaded every document is one of the file, with its own next tokens as targets; and the pass over them is as each alone.
void expect_documents(const std::string& prefix, const Fields& data, const std::string& preset) {
  const File file = file_of(prefix);
  const Loaded loaded = load(data, preset);
  std::vector<nn::Microbatch> all;
  for (const nn::Microbatch& microbatch : loaded.microbatches) {
    ASSERT_TRUE(microbatch.places);
    EXPECT_EQ(microbatch.valid_targets, nn::count_valid(microbatch.targets));
    for (int64_t row = 0; row < microbatch.tokens.size(0); ++row)
      for (const mesh::Range& range : documents_of(microbatch, row)) {
        nn::Microbatch document{.tokens = microbatch.tokens[row].narrow(0, range.begin, range.size()).clone().unsqueeze(0),
                                .targets = microbatch.targets[row].narrow(0, range.begin, range.size()).clone().unsqueeze(0)};
        for (int64_t i = range.begin; i < range.end; ++i)
          EXPECT_EQ(microbatch.places->positions[row][i].item<int64_t>(), i - range.begin) << "row " << row << " place " << i;
        const bool fill = range.size() == 1 && nn::count_valid(document.targets) == 0;  // or a document of one token: nothing counts
        bool found = fill;
        for (size_t first = 0; !found && first < file.tokens.size(); ++first)
          found = is_at(file, first, document, range.end == microbatch.tokens.size(1));
        EXPECT_TRUE(found) << "row " << row << " places " << range.begin << " to " << range.end;
        all.push_back(std::move(document));
      }
  }
  expect_same(run(loaded.layout.model, loaded.microbatches), run(loaded.layout.model, all), cat(preset, " ", join(data, " ")));
}

TEST(PackedDocuments, ThatTrainingLoads) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const Fields& data : {testing::packed(), testing::masked()}) expect_documents(testing::document_tokens(), data, preset);
}

// Paragraphs of the excerpt; its path without ending.
std::string paragraphs() {
  testing::document_tokens();  // makes the folder
  const data::Tokenizer tokenizer = data::Tokenizer::parse(data::trained_json(512), "trained");
  const std::string text = data::excerpt(), prefix = (testing::folder() / "paragraphs").string();
  data::TokenFileWriter writer(prefix, 512);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find("\n\n", begin), text.size());
    const std::vector<int32_t> ids = tokenizer.encode(text.substr(begin, end - begin));
    if (!ids.empty()) writer.add_document(ids);
    begin = end + 2;
  }
  writer.finish();
  return prefix;
}

// Packed training is training document by document.
TEST(PackedDocuments, OfRealText) {
  const std::string prefix = paragraphs();
  for (const char* how : {"data.pack=documents", "data.document_mask=true"})
    expect_documents(prefix, {cat("data.train=", prefix), how, "train.seq_len=64"}, "llama-test");
}

}  // namespace
}  // namespace lockstep::train
