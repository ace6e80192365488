#include "lockstep/data/bpe_tokenizer.h"

#include <gmock/gmock.h>

#include <thread>

#include "lockstep/base/random.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A tokenizer with the 256 bytes, the given merges (ids from 256) and <|endoftext|>.
Json with_merges(const std::vector<std::pair<std::string, std::string>>& merges) {
  Json file = Json::parse(trained_json(257));
  Json& model = file["model"];
  model["vocab"] = Json::object();
  const ByteAlphabet alphabet;
  for (int byte = 0; byte < 256; ++byte) model["vocab"][alphabet.symbol(static_cast<uint8_t>(byte))] = byte;
  int id = 256;
  for (const auto& [left, right] : merges) {
    model["merges"].push_back(Json::array({left, right}));
    if (!model["vocab"].contains(left + right)) model["vocab"][left + right] = id++;
  }
  file["added_tokens"][0]["id"] = id;
  return file;
}

Tokenizer tokenizer_of(const Json& file) {
  return Tokenizer::parse(file.dump(), "test.json");
}

std::string refusal_of(const Json& file) {
  return refusal([&] { tokenizer_of(file); });
}

// BPE by its definition: again and again the first learned pair, leftmost first.
std::vector<std::string> slow_bpe(std::string_view text,
                                  const std::vector<std::pair<std::string, std::string>>& merges) {
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  for (const auto& [left, right] : merges)
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      if (parts[i] == left && parts[i + 1] == right) {
        parts[i] += right;
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
  return parts;
}

TEST(Tokenizer, MergesInTheOrderLearned) {
  const Tokenizer tokenizer = tokenizer_of(with_merges({{"b", "c"}, {"a", "b"}, {"a", "bc"}}));
  EXPECT_THAT(tokenizer.encode("abc"), ElementsAre(258));  // b c first, then a bc
  EXPECT_THAT(tokenizer.encode("abab"), ElementsAre(257, 257));
  EXPECT_EQ(tokenizer.vocab_size(), 260);
  EXPECT_EQ(tokenizer.eos_id(), 259);
  EXPECT_EQ(tokenizer.token_id("abc"), 258);
  EXPECT_EQ(tokenizer.token_id("abcd"), std::nullopt);
}

TEST(Tokenizer, AgreesWithTheDefinitionOnRandomWords) {
  // Each merge is of lower rank than those it builds on, as training makes them.
  const std::vector<std::pair<std::string, std::string>> merges = {{"a", "b"},   {"b", "a"},   {"a", "a"},
                                                                   {"ab", "a"},  {"aa", "aa"}, {"ba", "b"},
                                                                   {"ab", "ab"}, {"aba", "b"}, {"b", "b"}};
  const Tokenizer tokenizer = tokenizer_of(with_merges(merges));
  const RandomStream random(1, "words");
  for (uint64_t word = 0; word < 2000; ++word) {
    std::string text;
    for (uint64_t i = 0; i < 1 + word % 40; ++i) text += random.bits(word * 64 + i) & 1 ? 'a' : 'b';
    std::vector<std::string> parts;
    for (const int32_t id : tokenizer.encode(text)) parts.emplace_back(tokenizer.token_bytes(id));
    ASSERT_EQ(parts, slow_bpe(text, merges)) << text;
  }
}

TEST(Tokenizer, HardTextSurvivesEncodingAndDecoding) {
  const Tokenizer tokenizer = Tokenizer::parse(trained_json(), "trained");
  std::string all;
  for (const std::string& text : hard_strings()) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    all += text;
  }
  all += excerpt();
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(all)), all);
}

TEST(Tokenizer, MalformedUtf8IsReadAsReplacement) {
  const Tokenizer tokenizer = Tokenizer::parse(trained_json(), "trained");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xFF\xE2\x82z")), "a\uFFFD\uFFFDz");
  EXPECT_EQ(tokenizer.encode("a\xFFz"), tokenizer.encode("a\uFFFDz"));
}

TEST(Tokenizer, StreamHoldsBackIncompleteCharacters) {
  const Tokenizer tokenizer = Tokenizer::parse(trained_json(), "trained");
  for (const std::string& text : hard_strings()) {
    StreamDecoder stream(tokenizer);
    std::string streamed;
    for (const int32_t id : tokenizer.encode(text)) {
      const std::string part = stream.push(id);
      EXPECT_TRUE(is_valid_utf8(part));
      EXPECT_EQ(part.find("\uFFFD"), std::string::npos);
      streamed += part;
    }
    EXPECT_EQ(streamed + stream.finish(), text);
  }
  // Any order of bytes gives what decoding them at once gives.
  const RandomStream random(2, "bytes");
  StreamDecoder stream(tokenizer);
  std::vector<int32_t> ids;
  std::string streamed;
  for (uint64_t i = 0; i < 5000; ++i) {
    ids.push_back(static_cast<int32_t>(1 + random.bits(i) % 256));
    streamed += stream.push(ids.back());
  }
  EXPECT_EQ(streamed + stream.finish(), tokenizer.decode(ids));
}

TEST(Tokenizer, AddedTokensComeFirst) {
  Json file = with_merges({});
  file["model"]["vocab"]["gap"] = 299;
  file["added_tokens"][0]["id"] = 257;
  file["added_tokens"].push_back({{"id", 258}, {"content", "<|end"}, {"normalized", false}, {"special", true}});
  const Tokenizer tokenizer = tokenizer_of(file);
  EXPECT_THAT(tokenizer.encode("a<|endoftext|><|endo"), ElementsAre('a', 257, 258, 'o'));  // leftmost, then longest
  EXPECT_EQ(tokenizer.vocab_size(), 300);
  EXPECT_THAT(refusal([&] { tokenizer.token_bytes(280); }), StartsWith("LS1212"));  // a gap
  EXPECT_THAT(refusal([&] { tokenizer.decode(std::vector<int32_t>{-1}); }), HasSubstr("token id -1"));
}

TEST(Tokenizer, NfcAndSplitAndIgnoreMerges) {
  Json file = with_merges({{"a", "b"}});
  file["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(tokenizer_of(file).encode("e\u0301"), tokenizer_of(file).encode("\u00e9"));
  EXPECT_THAT(tokenizer_of(file).encode("e\u0301"), ElementsAre(0xC3, 0xA9));

  const auto with_split = [&](const Json& pattern, const char* behavior, bool invert) {
    Json split = {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
    Json last = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, last})}};
    const Tokenizer tokenizer = tokenizer_of(file);
    return tokenizer.decode(tokenizer.encode("ab-ab"));
  };
  EXPECT_EQ(with_split({{"Regex", "-"}}, "Isolated", false), "ab-ab");
  EXPECT_EQ(with_split({{"String", "-"}}, "Removed", false), "abab");
  EXPECT_EQ(with_split({{"Regex", "\\w+"}}, "Removed", true), "abab");

  Json whole = with_merges({});
  whole["model"]["vocab"]["xyz"] = 400;
  whole["added_tokens"][0]["id"] = 257;
  EXPECT_EQ(tokenizer_of(whole).encode("xyz").size(), 3u);
  whole["model"]["ignore_merges"] = true;
  EXPECT_THAT(tokenizer_of(whole).encode("xyz"), ElementsAre(400));
}

// The pieces each behavior gives; expected values are those of tokenizers.pre_tokenizers.Split.
TEST(PreTokenizer, SplitBehaviors) {
  const auto pieces = [](const char* behavior, std::string_view text) {
    const Json sequence = {
        {"type", "Sequence"},
        {"pretokenizers", Json::array({{{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}},
                                       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}})}};
    std::vector<std::string> found;
    PreTokenizer(Component(sequence, "pre_tokenizer", "test")).split(text, [&](auto piece) {
      found.emplace_back(piece);
    });
    return found;
  };
  EXPECT_THAT(pieces("Isolated", "a-b--c"), ElementsAre("a", "-", "b", "-", "-", "c"));
  EXPECT_THAT(pieces("Removed", "a-b--c"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(pieces("MergedWithPrevious", "a-b--c"), ElementsAre("a-", "b-", "-", "c"));
  EXPECT_THAT(pieces("MergedWithNext", "a-b--c"), ElementsAre("a", "-b", "-", "-c"));
  EXPECT_THAT(pieces("Contiguous", "a-b--c"), ElementsAre("a", "-", "b", "--", "c"));
  EXPECT_THAT(pieces("MergedWithPrevious", "-a-"), ElementsAre("-", "a-"));
}

TEST(Tokenizer, BothFormsOfMerges) {
  Json file = with_merges({{"a", "b"}});
  file["model"]["merges"] = {"a b"};
  EXPECT_THAT(tokenizer_of(file).encode("ab"), ElementsAre(256));
}

TEST(Tokenizer, RefusesByTheNameOfTheComponent) {
  const auto changed = [](const std::function<void(Json&)>& change) {
    Json file = with_merges({{"a", "b"}});
    change(file);
    return refusal_of(file);
  };
  EXPECT_THAT(changed([](Json& f) {
                f["normalizer"] = {{"type", "Lowercase"}};
              }),
              HasSubstr("LS1211: normalizer has type Lowercase"));
  EXPECT_THAT(changed([](Json& f) {
                f["pre_tokenizer"] = {{"type", "Whitespace"}};
              }),
              HasSubstr("pre_tokenizer has type Whitespace"));
  EXPECT_THAT(changed([](Json& f) { f["pre_tokenizer"]["new_option"] = 1; }), HasSubstr("has a member \"new_option\""));
  EXPECT_THAT(changed([](Json& f) {
                f["decoder"] = {{"type", "WordPiece"}};
              }),
              HasSubstr("decoder has type WordPiece"));
  EXPECT_THAT(changed([](Json& f) {
                f["post_processor"] = {{"type", "BertProcessing"}};
              }),
              HasSubstr("post_processor has type BertProcessing"));
  EXPECT_THAT(changed([](Json& f) { f["model"]["type"] = "Unigram"; }), HasSubstr("model has type Unigram"));
  EXPECT_THAT(changed([](Json& f) { f["model"]["dropout"] = 0.1; }), HasSubstr("dropout"));
  EXPECT_THAT(changed([](Json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(changed([](Json& f) { f["truncation"] = {{"max_length", 5}}; }), HasSubstr("sets truncation"));
}

TEST(Tokenizer, ByteWithoutTokenIsNamed) {
  Json file = with_merges({});
  file["model"]["vocab"].erase("z");
  file["added_tokens"].clear();
  EXPECT_THAT(refusal([&] { tokenizer_of(file).encode("xyz"); }), HasSubstr("no token for byte 122"));
}

TEST(Tokenizer, ThreadsShareOne) {
  const Tokenizer tokenizer = Tokenizer::parse(trained_json(), "trained");
  const std::string text = excerpt().substr(0, 8000);
  const std::vector<int32_t> expected = tokenizer.encode(text);
  std::vector<std::vector<int32_t>> found(4);
  {
    std::vector<std::jthread> threads;
    for (auto& ids : found)
      threads.emplace_back([&] {
        for (int round = 0; round < 5; ++round) ids = tokenizer.encode(text);
      });
  }
  for (const auto& ids : found) EXPECT_EQ(ids, expected);
}

}  // namespace
}  // namespace lockstep::data
