#include "lockstep/data/decoder.h"

#include <gmock/gmock.h>

#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Decoder chain(const Json& steps) {
  const Json sequence = {{"type", "Sequence"}, {"decoders", steps}};
  const Component component(sequence, "decoder", "test");
  return Decoder(&component);
}

// What comes out at each token, and at the end.
std::vector<std::string> parts(const Decoder& decoder, const std::vector<std::string>& tokens) {
  Decoder::Stream stream(decoder);
  std::vector<std::string> out;
  for (const std::string& token : tokens) stream.push(decoder.input_of(token), out.emplace_back());
  stream.finish(out.emplace_back());
  return out;
}

const Json kFallback = {{"type", "ByteFallback"}};
const Json kFuse = {{"type", "Fuse"}};
const Json kBytes = {{"type", "ByteLevel"}};

TEST(Decoder, BytesAreHeldUntilTheyAreACharacter) {
  const Decoder decoder = chain(Json::array({kBytes}));
  EXPECT_THAT(parts(decoder, {"\u0120a", "\u00e2", "\u0124", "\u00ac!"}), ElementsAre(" a", "", "", "\u20ac!", ""));
  EXPECT_THAT(parts(decoder, {"\u00e2", "a"}), ElementsAre("", "\uFFFDa", ""));
  EXPECT_THAT(parts(decoder, {"\u00e2"}), ElementsAre("", "\uFFFD"));
}

// A run of byte tokens is text or not as a whole, so it is held until it ends.
TEST(Decoder, RunsOfByteTokens) {
  const Decoder decoder = chain(Json::array({kFallback, kFuse}));
  EXPECT_THAT(parts(decoder, {"a", "<0xE2>", "<0x82>", "<0xac>", "b"}), ElementsAre("a", "", "", "", "\u20acb", ""));
  EXPECT_THAT(parts(decoder, {"<0x41>", "<0xE2>", "b", "<0xG1>"}), ElementsAre("", "", "\uFFFD\uFFFDb", "<0xG1>", ""));
  EXPECT_THAT(parts(decoder, {"<0x41>", "<0x42>"}), ElementsAre("", "", "AB"));
}

TEST(Decoder, StripBeforeAndBehindFuse) {
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 2}, {"stop", 1}};
  EXPECT_THAT(parts(chain(Json::array({strip})), {"   a ", " ", "b  "}), ElementsAre(" a", "", "b ", ""));
  // Of one text: two spaces of its start, one of its end; a space that may be the last is held.
  EXPECT_THAT(parts(chain(Json::array({kFuse, strip})), {" ", "  a ", " ", "b  ", " "}),
              ElementsAre("", " a", " ", " b ", " ", ""));
}

TEST(Decoder, StepsThatSeeTheTextWholeHoldIt) {
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "-"}};
  EXPECT_THAT(parts(chain(Json::array({replace})), {"ab", "a", "b"}), ElementsAre("-", "a", "b", ""));
  EXPECT_THAT(parts(chain(Json::array({kFuse, replace})), {"ab", "a", "b"}), ElementsAre("", "", "", "--"));
}

TEST(Decoder, SpecialTokensCanBeLeftOut) {
  const Tokenizer tokenizer = Tokenizer::parse(trained_json(), "trained");
  const std::vector<int32_t> ids = tokenizer.encode("a<|endoftext|> b");
  EXPECT_EQ(tokenizer.decode(ids), "a<|endoftext|> b");
  EXPECT_EQ(tokenizer.decode(ids, {.skip_special_tokens = true}), "a b");
  StreamDecoder stream(tokenizer, {.skip_special_tokens = true});
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  EXPECT_EQ(text + stream.finish(), "a b");
  EXPECT_TRUE(tokenizer.is_special(0));
  EXPECT_FALSE(tokenizer.is_special(1));
}

TEST(TokenizerConfig, NamesTheTokensThatPlayAPart) {
  const auto folder = fresh_folder("config");
  Json file = Json::parse(trained_json(300));
  file["added_tokens"].push_back({{"id", 300}, {"content", "<end>"}, {"special", true}});
  write_file(folder / "tokenizer.json", file.dump());
  EXPECT_EQ(Tokenizer::load(folder).eos_id(), 0);  // <|endoftext|>, as nothing says otherwise
  EXPECT_THAT(Tokenizer::load(folder).eos_ids(), ElementsAre(0));
  write_file(folder / "special_tokens_map.json", R"({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"})");
  write_file(folder / "tokenizer_config.json", R"({"eos_token": {"content": "<end>"}, "pad_token": null})");
  write_file(folder / "generation_config.json", R"({"eos_token_id": [0, 300, 7]})");
  const Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json");
  EXPECT_EQ(tokenizer.eos_id(), 300);
  EXPECT_EQ(tokenizer.special().bos, 0);
  EXPECT_EQ(tokenizer.special().pad, std::nullopt);
  EXPECT_THAT(tokenizer.eos_ids(), ElementsAre(300, 0, 7));

  write_file(folder / "generation_config.json", R"({"eos_token_id": "7"})");
  EXPECT_THAT(refusal([&] { Tokenizer::load(folder); }), HasSubstr("LS1216: eos_token_id holds \"7\""));
  write_file(folder / "tokenizer_config.json", R"({"eos_token": "<stop>"})");
  EXPECT_THAT(refusal([&] { Tokenizer::load(folder); }), HasSubstr("\"<stop>\" is not a token"));
}

}  // namespace
}  // namespace lockstep::data
