// Text made to be slow: twice as much of it may take about twice the steps. Steps are counted, no clock is read.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <gmock/gmock.h>
#include <pcre2.h>

#include "lockstep/base/random.h"
#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/data/regex_syntax.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string repeated(std::string_view part, size_t size) {
  std::string text;
  while (text.size() < size) text += part;
  return text;
}

std::string random_letters(size_t size, std::string_view letters) {
  const RandomStream random(3, "letters");
  std::string text;
  for (size_t i = 0; i < size; ++i) text += letters[random.bits(i) % letters.size()];
  return text;
}

// Merges of runs of "a", then of pairs of letters: each joins what others want.
Json with_merges(std::string_view pattern) {
  Json file = Json::parse(trained_json(257));
  file["added_tokens"].clear();
  Json& model = file["model"];
  int next = 257;
  const auto merge = [&](const std::string& left, const std::string& right) {
    model["merges"].push_back(Json::array({left, right}));
    if (!model["vocab"].contains(left + right)) model["vocab"][left + right] = next++;
  };
  std::string run = "a";
  for (int i = 0; i < 12; ++i, run += run) merge(run, run);
  for (const char* left : {"b", "c", "a"})
    for (const char* right : {"c", "b", "a"}) merge(left, right);
  for (const char* left : {"ab", "bc", "ca", "aa"})
    for (const char* right : {"a", "b", "c", "ab", "bc"}) merge(left, right);
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       Json::array({{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
                    {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}})}};
  return file;
}

uint64_t steps_of(const Tokenizer& tokenizer, const std::string& text) {
  uint64_t steps = 0;
  const std::vector<int32_t> ids = tokenizer.encode(text, {.steps = &steps});
  EXPECT_EQ(tokenizer.decode(ids), text);
  return steps;
}

TEST(TokenizerLinear, Merges) {
  const Tokenizer tokenizer = Tokenizer::parse(with_merges(kLlama3Pattern).dump(), "linear");
  constexpr size_t kSize = size_t{1} << 19;
  for (const size_t size : {kSize, 2 * kSize}) {
    // A symbol is read once, and each merge puts two more pairs on the heap.
    const auto most = 4 * size;
    EXPECT_LE(steps_of(tokenizer, std::string(size, 'a')), most);
    EXPECT_LE(steps_of(tokenizer, std::string(size, ' ')), most);
    EXPECT_LE(steps_of(tokenizer, random_letters(size, "abc")), most);
    EXPECT_LE(steps_of(tokenizer, repeated("aab", size)), most);
  }
}

TEST(TokenizerLinear, AddedTokens) {
  // "a" x 2^k x "b": whoever tries each token at each place looks at the whole run every time.
  Json file = with_merges(kLlama3Pattern);
  const auto add = [&](const std::string& content, bool normalized, bool strip) {
    file["added_tokens"].push_back({{"id", file["model"]["vocab"].size() + file["added_tokens"].size()},
                                    {"content", content},
                                    {"lstrip", strip},
                                    {"rstrip", strip},
                                    {"normalized", normalized},
                                    {"special", false}});
  };
  for (size_t size = 64; size <= 4096; size += 64) add(std::string(size, 'q') + "b", size % 128 == 0, false);
  for (int i = 0; i < 2000; ++i) add("<extra_" + std::to_string(i) + ">", i % 2 == 0, false);
  const Tokenizer tokenizer = Tokenizer::parse(file.dump(), "linear");
  for (const size_t size : {size_t{1} << 18, size_t{1} << 19}) {
    EXPECT_LE(steps_of(tokenizer, std::string(size, 'q')), 8 * size);
    EXPECT_LE(steps_of(tokenizer, repeated("<extra_", size)), 8 * size);
    EXPECT_LE(steps_of(tokenizer, repeated("<extra_7>", size)), 8 * size);
  }
  // White space that a token takes along is looked at once.
  add("<s>", false, true);
  const Tokenizer strips = Tokenizer::parse(file.dump(), "linear");
  for (const size_t size : {size_t{1} << 18, size_t{1} << 19}) {
    uint64_t steps = 0;
    strips.encode(std::string(size, ' ') + "<s>" + std::string(size, ' ') + "<s><s>", {.steps = &steps});
    EXPECT_LE(steps, 8 * size);
  }
}

// A pile of combining marks in the wrong order: sorting them is what makes it n log n.
TEST(TokenizerLinear, NormalForms) {
  std::string text = "e";
  for (int i = 0; i < 200'000; ++i) text += "\u0301";  // class 230, to stand behind class 220
  for (int i = 0; i < 200'000; ++i) text += "\u0316";
  const std::string form = to_normal_form(text, NormalForm::kNfc);
  EXPECT_EQ(form.size(), 2 + 2 * 399'999u);
  EXPECT_TRUE(form.starts_with("\u00e9\u0316\u0316"));
  EXPECT_TRUE(form.ends_with("\u0301\u0301"));
}

// Steps of PCRE2's interpreter, which calls back at each item of the pattern.
uint64_t regex_steps(std::string_view pattern, const std::string& text) {
  const auto pointer = [](std::string_view bytes) { return reinterpret_cast<PCRE2_SPTR>(bytes.data()); };
  const std::string source = pcre2_pattern(pattern);
  int error = 0;
  size_t offset = 0;
  pcre2_code* code = pcre2_compile(pointer(source), source.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_AUTO_CALLOUT, &error, &offset,
                                   nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  uint64_t steps = 0;
  const auto count = [](pcre2_callout_block*, void* counter) { return ++*static_cast<uint64_t*>(counter), 0; };
  pcre2_set_callout(context, count, &steps);
  for (size_t at = 0; at < text.size(); at = pcre2_get_ovector_pointer(data)[1]) {
    const int found = pcre2_match(code, pointer(text), text.size(), at, PCRE2_NO_UTF_CHECK, data, context);
    EXPECT_GT(found, 0);
    if (found <= 0) break;
  }
  pcre2_match_data_free(data);
  pcre2_match_context_free(context);
  pcre2_code_free(code);
  return steps;
}

TEST(TokenizerLinear, Patterns) {
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern})
    for (const char* part : {"a", " ", "\n", "\r\n", " \n", "\n ", "\t a", "1", ".", "'", "'l", "\u0301", " \u65e5",
                             "\u3000", "a1.", ". \n"}) {
      const uint64_t once = regex_steps(pattern, repeated(part, 12'000));
      const uint64_t twice = regex_steps(pattern, repeated(part, 24'000));
      EXPECT_LE(twice, once * 21 / 10 + 100) << pattern << " on " << part;
    }
}

// PCRE2's limit of ten million steps for a match is no limit to a run of white space.
TEST(TokenizerLinear, LongRuns) {
  const Tokenizer tokenizer = Tokenizer::parse(with_merges(kLlama3Pattern).dump(), "linear");
  EXPECT_EQ(tokenizer.encode(std::string(size_t{12} << 20, ' ') + "b").size(), (size_t{12} << 20) + 1);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(std::string(size_t{1} << 20, '\xFF'))).size(), size_t{3} << 20);
}

}  // namespace
}  // namespace lockstep::data
