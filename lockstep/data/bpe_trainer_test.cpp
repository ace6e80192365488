#include "lockstep/data/bpe_trainer.h"

#include <gmock/gmock.h>

#include <map>

#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

BpeVocabulary train(std::string_view text, int64_t vocab_size, int64_t min_count = 1) {
  BpeTrainer trainer({.vocab_size = vocab_size, .min_count = min_count});
  trainer.add(text);
  return trainer.train();
}

// Training by its definition: all pairs counted anew before each merge.
std::vector<std::string> slow_pieces(const std::vector<std::pair<std::string, int64_t>>& words, size_t merges) {
  using Pair = std::pair<int32_t, int32_t>;
  std::vector<std::string> pieces;
  std::map<std::string, int32_t> id_of;
  for (const uint8_t byte : ByteAlphabet().in_code_point_order()) {
    pieces.emplace_back(1, static_cast<char>(byte));
    id_of[pieces.back()] = static_cast<int32_t>(pieces.size());  // id 0 is the special token
  }
  std::vector<std::vector<int32_t>> symbols;
  for (const auto& [word, count] : words) {
    auto& ids = symbols.emplace_back();
    for (const char byte : word) ids.push_back(id_of[std::string(1, byte)]);
  }
  for (size_t merge = 0; merge < merges; ++merge) {
    std::map<Pair, int64_t> counts;
    for (size_t w = 0; w < words.size(); ++w)
      for (size_t i = 0; i + 1 < symbols[w].size(); ++i) counts[{symbols[w][i], symbols[w][i + 1]}] += words[w].second;
    Pair best;
    int64_t most = 0;
    for (const auto& [pair, count] : counts)
      if (count > most) std::tie(best, most) = std::pair(pair, count);
    pieces.push_back(pieces[static_cast<size_t>(best.first) - 1] + pieces[static_cast<size_t>(best.second) - 1]);
    for (auto& ids : symbols)
      for (size_t i = 0; i + 1 < ids.size(); ++i)
        if (Pair(ids[i], ids[i + 1]) == best) {
          ids[i] = static_cast<int32_t>(pieces.size());
          ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
  }
  return pieces;
}

TEST(BpeTrainer, LearnsTheMostFrequentPairFirst) {
  // "aab" three times, " aab" not at all: a a and a b are both seen 3 times, the smaller pair of ids wins.
  const BpeVocabulary vocabulary = train("aab\naab\naab", 259);
  ASSERT_EQ(vocabulary.size(), 259);
  EXPECT_EQ(vocabulary.pieces[256], "aa");
  EXPECT_EQ(vocabulary.pieces[257], "aab");
  EXPECT_THAT(vocabulary.special_tokens, ElementsAre("<|endoftext|>"));
}

TEST(BpeTrainer, AgreesWithCountingAnewBeforeEachMerge) {
  const std::string text = excerpt().substr(0, 6000);
  std::map<std::string, int64_t> counts;
  PreTokenizer::gpt2().split(text, [&](std::string_view word) { ++counts[std::string(word)]; });
  const std::vector<std::pair<std::string, int64_t>> words(counts.begin(), counts.end());
  EXPECT_EQ(train(text, 257 + 150).pieces, slow_pieces(words, 150));
  const std::string runs = "aaaa aaa aaaaaaa abababab baba aabb aaaaaaaaaaaaa bbbb";
  counts.clear();
  PreTokenizer::gpt2().split(runs, [&](std::string_view word) { ++counts[std::string(word)]; });
  EXPECT_EQ(train(runs, 257 + 8).pieces, slow_pieces({counts.begin(), counts.end()}, 8));
}

TEST(BpeTrainer, SameTextSameFileHoweverItIsCutIntoDocuments) {
  const std::string text = excerpt();
  BpeTrainer trainer({.vocab_size = 700});
  const size_t cut = text.find("\n\n", text.size() / 2);
  trainer.add(text.substr(cut));  // white space at the cut goes to one side, as the pattern would have it
  trainer.add(text.substr(0, cut));
  BpeTrainer other({.vocab_size = 700});
  other.add(text.substr(0, cut));
  other.add(text.substr(cut));
  EXPECT_EQ(trainer.train().tokenizer_json(), other.train().tokenizer_json());
  EXPECT_EQ(trainer.num_words(), other.num_words());
}

TEST(BpeTrainer, TheFileLoadsAndEncodesWithItsOwnTokens) {
  const BpeVocabulary vocabulary = train(excerpt(), 1000);
  const Tokenizer tokenizer = Tokenizer::parse(vocabulary.tokenizer_json(), "trained");
  EXPECT_EQ(tokenizer.vocab_size(), 1000);
  EXPECT_EQ(tokenizer.eos_id(), 0);
  for (size_t i = 0; i < vocabulary.pieces.size(); ++i)
    EXPECT_EQ(tokenizer.token_bytes(static_cast<int32_t>(i) + 1), vocabulary.pieces[i]);
  const std::vector<int32_t> ids = tokenizer.encode(excerpt());
  EXPECT_EQ(tokenizer.decode(ids), excerpt());
  EXPECT_LT(3 * ids.size(), 2 * excerpt().size());
}

TEST(BpeTrainer, StopsWhereNothingIsLeftToMerge) {
  const BpeVocabulary all = train("ab", 1000);
  EXPECT_EQ(all.size(), 258);
  EXPECT_EQ(train("", 1000).size(), 257);
  EXPECT_EQ(train("ab ab ac", 1000, 2).size(), 258);  // "ab" is seen twice; after it " a" only once
  EXPECT_THAT(refusal([] { train("a", 256); }), StartsWith("LS1080"));
}

}  // namespace
}  // namespace lockstep::data
