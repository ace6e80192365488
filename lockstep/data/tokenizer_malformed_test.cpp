// Files that are no tokenizer: each is refused with a message that names what is wrong, whatever is damaged.
#include <gmock/gmock.h>

#include "lockstep/base/random.h"
#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Every kind of component there is, in one file.
Json full_file() {
  Json file = Json::parse(trained_json(300));
  const Json regex = {{"Regex", "\\s"}};
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", Json::array({{{"type", "NFC"}},
                                                     {{"type", "Replace"}, {"pattern", regex}, {"content", " "}},
                                                     {{"type", "Prepend"}, {"prepend", "_"}}})}};
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       Json::array({{{"type", "Split"}, {"pattern", regex}, {"behavior", "Isolated"}, {"invert", false}},
                    {{"type", "Digits"}, {"individual_digits", true}},
                    {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}})}};
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", Json::array({{{"SpecialToken", {{"id", "<b>"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
      {"pair", Json::array()},
      {"special_tokens", {{"<b>", {{"id", "<b>"}, {"ids", {0}}, {"tokens", {"<b>"}}}}}}};
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders", Json::array({{{"type", "ByteLevel"}},
                                               {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}},
                                               {{"type", "Metaspace"}, {"replacement", "_"}}})}};
  return file;
}

std::string refusal_of(const Json& file) {
  return refusal([&] { Tokenizer::parse(file.dump(), "test.json").encode("a b"); });
}

struct Damage {
  const char* where;  // JSON pointer
  Json value;
  const char* message;
};

TEST(TokenizerMalformed, TheWholeFileLoads) {
  EXPECT_EQ(refusal_of(full_file()), "nothing thrown");
}

TEST(TokenizerMalformed, EachValueThatIsWrongIsNamed) {
  const Json object = Json::object();
  const std::vector<Damage> damages = {
      {"/model", 1, "LS1210: model is a JSON number, not an object"},
      {"/model", object, "LS1210: model has no \"vocab\""},
      {"/model", nullptr, "LS1210: the tokenizer has no \"model\""},
      {"/model/type", "Unigram", "LS1211: model has type Unigram"},
      {"/model/type", 3, "LS1210: model member \"type\" is a JSON number, not a string"},
      {"/model/vocab", Json::array(), "LS1210: model.vocab is a JSON array"},
      {"/model/vocab/q2", -1, "the id -1, not a whole number from 0"},
      {"/model/vocab/q2", 1e30, "not a whole number"},
      {"/model/vocab/q2", 1.5, "not a whole number"},
      {"/model/vocab/q2", 18446744073709551615u, "not a whole number"},
      {"/model/vocab/q2", 4294967296, "not a whole number"},
      {"/model/vocab/q2", "7", "not a whole number"},
      {"/model/vocab/q2", nullptr, "not a whole number"},
      {"/model/vocab/q2", 7, "gives id 7 to two tokens"},
      {"/model/merges", 3, "LS1210: model member \"merges\" is not a list"},
      {"/model/merges", nullptr, "LS1210: model has no \"merges\""},
      {"/model/merges/0", "a b c", "merge 0 is \"a b c\", neither"},
      {"/model/merges/0", "ab", "merge 0 is \"ab\""},
      {"/model/merges/0", {"a"}, "merge 0 is [\"a\"]"},
      {"/model/merges/0", {1, 2}, "merge 0 is [1,2]"},
      {"/model/merges/0", {"zz", "a"}, "not in the vocabulary"},
      {"/model/merges/0", {"a", "\u0120zz"}, "not in the vocabulary"},
      {"/model/dropout", 0.1, "LS1211: model has dropout"},
      {"/model/continuing_subword_prefix", "##", "LS1211: model has a continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "LS1211: model has a end_of_word_suffix"},
      {"/model/unk_token", "<none>", "LS1210: model has the unk_token \"<none>\""},
      {"/model/unk_token", 0, "member \"unk_token\" is a JSON number"},
      {"/model/ignore_merges", "yes", "member \"ignore_merges\" is a JSON string, not true or false"},
      {"/model/new_option", 1, "LS1211: model has a member \"new_option\""},
      {"/new_part", 1, "LS1211: the tokenizer has a member \"new_part\""},
      {"/truncation", {{"max_length", 5}}, "LS1211: the tokenizer sets truncation"},
      {"/padding", {{"pad_id", 0}}, "LS1211: the tokenizer sets padding"},
      {"/added_tokens", object, "LS1210: the tokenizer member \"added_tokens\" is a JSON object, not a list"},
      {"/added_tokens/0", 7, "added_tokens[0] is a JSON number, not an object"},
      {"/added_tokens/0/id", 3, "but the vocabulary has 0"},
      {"/added_tokens/0/id", -3, "added_tokens[0] member \"id\" is -3, not a whole number"},
      {"/added_tokens/0/id", 18446744073709551615u, "not a whole number"},
      {"/added_tokens/0/content", "new", "where it is to be the next free one, 300"},
      {"/added_tokens/0/content", "", "added_tokens[0] has empty content"},
      {"/added_tokens/0/special", 1, "member \"special\" is a JSON number, not true or false"},
      {"/added_tokens/0/color", "red", "LS1211: added_tokens[0] has a member \"color\""},
      {"/normalizer", "NFC", "LS1210: normalizer is a JSON string, not an object"},
      {"/normalizer", object, "LS1210: normalizer has no \"type\""},
      {"/normalizer/type", "Lowercase", "LS1211: normalizer has type Lowercase"},
      {"/normalizer/normalizers", object, "not a list"},
      {"/normalizer/normalizers/1/pattern", object, "LS1210: normalizer.normalizers[1].pattern has to hold either"},
      {"/normalizer/normalizers/1/pattern/Regex", "", "normalizer.normalizers[1].pattern is empty"},
      {"/normalizer/normalizers/1/pattern/Regex", "(a", "LS1213"},
      {"/normalizer/normalizers/1/pattern/Regex", "[a", "LS1213"},
      {"/normalizer/normalizers/1/pattern/Regex", "[a[bc]]", "LS1215"},
      {"/normalizer/normalizers/1/pattern/Regex", "[a&&b]", "LS1215"},
      {"/normalizer/normalizers/1/pattern/Regex", "a{1,2}+", "LS1215"},
      {"/normalizer/normalizers/1/pattern/Regex", "a(?i)b", "LS1215"},
      {"/normalizer/normalizers/1/pattern/Regex", "\\pL", "LS1215"},
      {"/normalizer/normalizers/1/pattern/Regex", "\\p{Nonsense}", "LS1213"},
      {"/normalizer/normalizers/1/pattern/Regex", "\\", "LS1213"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Sideways",
       "LS1211: pre_tokenizer.pretokenizers[0] has behavior Sideways"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"Glob", "*"}}, "has a member \"Glob\""},
      {"/pre_tokenizer/pretokenizers/1/individual_digits", 1, "not true or false"},
      {"/pre_tokenizer/pretokenizers/1/type", "UnicodeScripts", "pretokenizers[1] has type UnicodeScripts"},
      {"/pre_tokenizer/pretokenizers/2/type", "ByteLevels", "has type ByteLevels"},
      {"/pre_tokenizer/pretokenizers/1", {{"type", "ByteLevel"}}, "pretokenizers[2] is a ByteLevel after ByteLevel"},
      {"/post_processor/type", "BertProcessing", "LS1211: post_processor has type BertProcessing"},
      {"/post_processor/special_tokens", nullptr, "post_processor has no \"special_tokens\""},
      {"/post_processor/special_tokens/<b>/ids/0", 5000, "adds id 5000, which is no token"},
      {"/post_processor/special_tokens/<b>/ids/0", -1, "\"ids\" is -1, not a whole number"},
      {"/post_processor/single/0", object, "is neither a Sequence nor a SpecialToken"},
      {"/post_processor/single/0/SpecialToken/id", "<c>", "which special_tokens does not list"},
      {"/post_processor/single/1/Sequence/id", "B", "has id \"B\""},
      {"/decoder/type", "WordPiece", "LS1211: decoder has type WordPiece"},
      {"/decoder/decoders/1/content", "ab", "is \"ab\", not one character"},
      {"/decoder/decoders/1/start", -1, "member \"start\" is -1"},
      {"/decoder/decoders/2/prepend_scheme", "often", "has prepend_scheme often"},
  };
  EXPECT_GE(damages.size(), 30u);
  for (const Damage& damage : damages) {
    Json file = full_file();
    file[Json::json_pointer(damage.where)] = damage.value;
    EXPECT_THAT(refusal_of(file), HasSubstr(damage.message)) << damage.where << " = " << damage.value;
  }
}

TEST(TokenizerMalformed, CutShort) {
  const std::string text = full_file().dump();
  for (size_t cut = 0; cut < text.size(); cut += 97)
    EXPECT_THAT(refusal([&] { Tokenizer::parse(text.substr(0, cut), "cut.json"); }), StartsWith("LS1205"));
}

// Flipped bytes and removed parts: an Error or a tokenizer that works, never a crash. What loads also encodes and
// decodes.
TEST(TokenizerMalformed, FlippedBytes) {
  const std::string text = full_file().dump();
  const RandomStream random(7, "flips");
  int refused = 0;
  for (uint64_t round = 0; round < 1500; ++round) {
    std::string damaged = text;
    // Half of the damage goes to the components, which are short beside the vocabulary.
    const size_t area = round % 2 == 0 ? damaged.size() : damaged.find("\"merges\"");
    for (uint64_t i = 0; i < 1 + round % 3; ++i) {
      const uint64_t bits = random.bits(round * 16 + i);
      const size_t place = bits % area;
      if (round % 5 == 4) {
        damaged.erase(place, 1 + (bits >> 40) % 8);
      } else {
        const char sign = "0129{}[]\",:\\x-aN"[(bits >> 40) % 16];
        damaged[place] = round % 3 == 0 ? static_cast<char>((bits >> 40) & 0xFF) : sign;
      }
    }
    const std::string found = refusal([&] {
      const Tokenizer tokenizer = Tokenizer::parse(damaged, "flipped.json");
      tokenizer.decode(tokenizer.encode("It is 1811. <|endoftext|>"));
    });
    EXPECT_THAT(found, AnyOf(StartsWith("LS12"), StartsWith("nothing thrown"))) << round;
    refused += found.starts_with("LS12") ? 1 : 0;
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace lockstep::data
