#include "lockstep/data/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/check.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Token i of the stream is i + 1: no token is that of fill.
std::shared_ptr<const TokenFile> file_of(const std::vector<int64_t>& lengths) {
  const auto prefix = fresh_folder("window") / "data";
  TokenFileWriter writer(prefix, 100000);
  int32_t next = 1;
  for (const int64_t length : lengths) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    std::iota(ids.begin(), ids.end(), next);
    next += static_cast<int32_t>(length);
    writer.add_document(ids);
  }
  writer.finish();
  return std::make_shared<TokenFile>(prefix);
}

std::vector<int64_t> uneven_lengths(int64_t documents) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < documents; ++i) lengths.push_back(i % 11 == 3 ? 37 : i * i % 13 + 1);
  return lengths;
}

// Of token t of the stream (from 1): where its document begins, and the first token behind it.
struct Document {
  int64_t begin, end;
};
Document document_of(const TokenIndex& index, int64_t token) {
  int64_t begin = 1;
  for (size_t document = 0; document + 1 < index.documents.size(); ++document) {
    int64_t length = 0;
    for (int64_t i = index.documents[document]; i < index.documents[document + 1]; ++i) length += index.lengths[static_cast<size_t>(i)];
    if (token < begin + length) return {begin, begin + length};
    begin += length;
  }
  return {};
}

struct Rules {
  bool mask, reset;
};
constexpr Rules kAllRules[] = {{false, false}, {true, true}, {true, false}, {false, true}};

// What place i of a window must say: what the window has of a token's document begins at the first place whose token is of it, or of the
// part of it that is there.
void expect_token(const Window& window, size_t i, size_t begin, const Rules& rules) {
  EXPECT_EQ(window.places[i], static_cast<int32_t>(i));
  EXPECT_EQ(window.first_seen[i], rules.mask ? static_cast<int32_t>(begin) : 0) << i;
  EXPECT_EQ(window.positions[i], static_cast<int64_t>(rules.reset ? i - begin : i)) << i;
}

TEST(Window, OfTheStreamKnowsItsDocuments) {
  const auto file = file_of(uneven_lengths(40));
  for (const int64_t seq_len : {1, 7, 16, 50})
    for (const Rules& rules : kAllRules) {
      const Sampler sampler(file, {.seq_len = seq_len, .shuffle = false, .rules = {.mask = rules.mask, .reset_positions = rules.reset}});
      EXPECT_EQ(sampler.samples_per_epoch(), (file->num_tokens() - 1) / seq_len);
      for (int64_t index = 0; index < sampler.samples_per_epoch(); ++index) {
        const Window window = sampler.window(index);
        ASSERT_EQ(static_cast<int64_t>(window.tokens.size()), seq_len);
        for (size_t i = 0; i < window.tokens.size(); ++i) {
          const int64_t token = index * seq_len + static_cast<int64_t>(i) + 1;
          const Document document = document_of(file->index(), token);
          EXPECT_EQ(window.tokens[i], token);
          EXPECT_EQ(window.targets[i], rules.mask && token + 1 == document.end ? kNoTarget : token + 1);
          expect_token(window, i, static_cast<size_t>(std::max<int64_t>(0, document.begin - 1 - index * seq_len)), rules);
        }
        EXPECT_EQ(window.plain(), window.documents().size() == 1 && (!rules.reset || window.positions.back() == seq_len - 1));
      }
    }
}

TEST(Window, OfDocumentsHasEveryTokenOnceAndFillBehind) {
  const auto file = file_of(uneven_lengths(60));
  for (const int64_t seq_len : {1, 5, 16, 40})
    for (const Rules& rules : kAllRules) {
      const Sampler sampler(file, {.seed = 3,
                                   .seq_len = seq_len,
                                   .pack = config::Pack::kDocuments,
                                   .rules = {.mask = rules.mask, .reset_positions = rules.reset}});
      std::vector<int64_t> seen;
      int64_t fill = 0;
      for (int64_t index = 0; index < sampler.samples_per_epoch(); ++index) {
        const Window window = sampler.window(index);
        EXPECT_EQ(window.tokens.front(), sampler.first_token(index) + 1);
        size_t begin = 0;
        for (size_t i = 0; i < window.tokens.size(); ++i) {
          const int64_t token = window.tokens[i];
          if (token == 0) {
            EXPECT_THAT((std::vector<int64_t>{window.targets[i], window.positions[i]}), ElementsAre(kNoTarget, 0));
            EXPECT_EQ(window.first_seen[i], static_cast<int32_t>(i));
            EXPECT_TRUE(i + 1 == window.tokens.size() || window.tokens[i + 1] == 0) << "fill is last";
            ++fill;
            continue;
          }
          const Document document = document_of(file->index(), token);
          if (i > 0 && (token == document.begin || window.tokens[i - 1] + 1 != token)) begin = i;
          EXPECT_EQ((token - document.begin) % seq_len, static_cast<int64_t>(i - begin)) << "parts of seq_len";
          EXPECT_EQ(window.targets[i], token + 1 == document.end ? kNoTarget : token + 1);
          expect_token(window, i, begin, rules);
          seen.push_back(token);
        }
      }
      std::ranges::sort(seen);
      std::vector<int64_t> all(static_cast<size_t>(file->num_tokens()));
      std::iota(all.begin(), all.end(), 1);
      EXPECT_EQ(seen, all);
      EXPECT_EQ(fill, sampler.packing()->figures().fill());
    }
}

TEST(Window, IsCutWithAllThatBelongsToItsTokens) {
  const Sampler sampler(file_of({3, 4, 9}), {.seq_len = 8, .shuffle = false, .rules = {.mask = true, .reset_positions = true}});
  const Window whole = sampler.window(0);
  EXPECT_THAT(whole.documents(), ElementsAre(0, 3, 7));
  EXPECT_EQ(whole.valid_targets(), 6);
  const Window part = cut(whole, std::vector<int32_t>{2, 3, 6, 9});
  EXPECT_THAT(part.tokens, ElementsAre(3, 4, 7, 0));
  EXPECT_THAT(part.targets, ElementsAre(kNoTarget, 5, kNoTarget, kNoTarget));
  EXPECT_THAT(part.positions, ElementsAre(2, 0, 3, 0));
  EXPECT_THAT(part.places, ElementsAre(2, 3, 6, 9));
  EXPECT_THAT(part.first_seen, ElementsAre(0, 3, 3, 9));
  EXPECT_EQ(part.valid_targets(), 1);
}

TEST(Window, LengthsOfDocumentsAreKnownWithoutTheirTokens) {
  const auto file = file_of(uneven_lengths(40));
  for (const config::Pack pack : {config::Pack::kStream, config::Pack::kDocuments}) {
    const Sampler sampler(file, {.seq_len = 16, .pack = pack, .rules = {.mask = true, .reset_positions = true}});
    for (int64_t index = 0; index < sampler.samples_per_epoch(); ++index) {
      const Window window = sampler.window(index);
      std::vector<int64_t> lengths;  // places of a document count from 0
      for (size_t i = 0; i < window.tokens.size() && window.tokens[i] > 0; ++i) {
        if (window.positions[i] == 0) lengths.push_back(0);
        ++lengths.back();
      }
      EXPECT_EQ(sampler.document_lengths(index), lengths);
    }
  }
  EXPECT_THAT(Sampler(file, {.seq_len = 16}).document_lengths(1), ElementsAre(16));
  const Sampler seen(file_of({3, 4, 2}), {.seq_len = 10, .pack = config::Pack::kDocuments});
  EXPECT_THAT(seen.document_lengths(0), ElementsAre(9)) << "without masks they are one";
}

TEST(Window, RefusesDocumentsFewerThanABatch) {
  const auto file = file_of({6, 2, 5, 3});
  const SamplerOptions two{.seq_len = 8, .global_batch = 2, .pack = config::Pack::kDocuments};
  EXPECT_EQ(Sampler(file, two).samples_per_epoch(), 2);
  SamplerOptions three = two;
  three.global_batch = 3;
  EXPECT_THAT(refusal([&] { Sampler(file, three); }),
              AllOf(StartsWith("LS1223"), HasSubstr("4 documents of 16 tokens, packed by 8 seq_len = 2 samples, but a batch needs 3")));
  EXPECT_THROW(Sampler(file, two).sample(0, std::span<int64_t>()), InternalError);
}

}  // namespace
}  // namespace lockstep::data
