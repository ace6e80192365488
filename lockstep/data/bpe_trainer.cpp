#include "lockstep/data/bpe_trainer.h"

#include <algorithm>
#include <queue>

#include "lockstep/base/check.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/json.h"
#include "lockstep/data/pair_table.h"
#include "lockstep/data/utf8.h"

namespace lockstep::data {
namespace {

// One distinct word: its symbols so far and how often the text has it.
struct Word {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

struct Pair {
  int64_t count = 0;
  std::vector<uint32_t> words{};  // words that hold it, or held it once
};

struct Candidate {
  int64_t count;
  int32_t left, right;
  bool operator<(const Candidate& other) const {  // the top of a priority queue: most frequent, then the smaller ids
    if (count != other.count) return count < other.count;
    return std::pair(left, right) > std::pair(other.left, other.right);
  }
};

// The state of one training run.
class Merger {
 public:
  Merger(std::vector<Word> words, size_t num_special) : words_(std::move(words)), num_special_(num_special) {
    for (const uint8_t byte : ByteAlphabet().in_code_point_order()) add_piece(std::string(1, static_cast<char>(byte)));
    for (size_t i = 0; i < words_.size(); ++i)
      for (size_t at = 0; at + 1 < words_[i].symbols.size(); ++at)
        change(words_[i].symbols[at], words_[i].symbols[at + 1], i, words_[i].count);
    pairs_.for_each([&](int32_t left, int32_t right, const Pair& pair) { queue_.push({pair.count, left, right}); });
    touched_.clear();
  }

  // Merges the most frequent pair; false if none is seen `min_count` times.
  bool step(int64_t min_count) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const int64_t count = pairs_(top.left, top.right).count;
      if (count != top.count) {  // it changed since it was queued
        if (count > 0) queue_.push({count, top.left, top.right});
        continue;
      }
      if (count < std::max<int64_t>(1, min_count)) return false;
      merge(top.left, top.right);
      return true;
    }
    return false;
  }

  std::vector<std::string> pieces;
  std::vector<std::pair<int32_t, int32_t>> merges;

 private:
  const std::string& piece(int32_t id) const { return pieces[static_cast<size_t>(id) - num_special_]; }

  // The id of a token that spells `text`: two pairs may spell the same.
  int32_t add_piece(const std::string& text) {
    const auto [place, is_new] = id_of_.try_emplace(text, static_cast<int32_t>(num_special_ + pieces.size()));
    if (is_new) pieces.push_back(text);
    return place->second;
  }

  void change(int32_t left, int32_t right, size_t word, int64_t by) {
    Pair& pair = pairs_(left, right);
    pair.count += by;
    if (by < 0) return;
    const auto index = static_cast<uint32_t>(word);
    if (pair.words.empty() || pair.words.back() != index) pair.words.push_back(index);
    touched_.emplace_back(left, right);
  }

  void merge(int32_t left, int32_t right) {
    const int32_t merged = add_piece(piece(left) + piece(right));
    merges.emplace_back(left, right);
    const std::vector<uint32_t> holders = std::move(pairs_(left, right).words);
    pairs_(left, right) = {};
    touched_.clear();
    for (const uint32_t word : holders) merge_in(word, left, right, merged);
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    for (const auto& [a, b] : touched_) queue_.push({pairs_(a, b).count, a, b});
  }

  // Replaces left right by merged in one word, left to right, and counts its pairs anew around each place.
  void merge_in(size_t index, int32_t left, int32_t right, int32_t merged) {
    std::vector<int32_t>& symbols = words_[index].symbols;
    const int64_t count = words_[index].count;
    const auto is_merged_pair = [&](int32_t a, int32_t b) { return a == left && b == right; };
    size_t kept = 0;
    for (size_t at = 0; at < symbols.size();) {
      const bool here = at + 1 < symbols.size() && is_merged_pair(symbols[at], symbols[at + 1]);
      if (!here) {
        symbols[kept++] = symbols[at++];
        continue;
      }
      if (kept > 0) {
        const int32_t before = symbols[kept - 1];
        if (!is_merged_pair(before, left)) change(before, left, index, -count);
        change(before, merged, index, count);
      }
      symbols[kept++] = merged;
      at += 2;
      if (at < symbols.size()) {
        const int32_t after = symbols[at];
        if (!is_merged_pair(right, after)) change(right, after, index, -count);
        change(merged, after, index, count);
        // The pair (merged, after) is taken back above if `after` is merged in turn: it is then (before, left).
      }
    }
    symbols.resize(kept);
  }

  std::vector<Word> words_;
  size_t num_special_;
  PairTable<Pair> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<std::pair<int32_t, int32_t>> touched_;
  std::unordered_map<std::string, int32_t> id_of_;
};

OrderedJson added_token(const std::string& content, size_t id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

size_t BpeTrainer::Hash::operator()(std::string_view text) const {
  return hash64(text);
}

BpeTrainer::BpeTrainer(BpeTrainerOptions options) : options_(std::move(options)), pre_tokenizer_(PreTokenizer::gpt2()) {
  const auto least = static_cast<int64_t>(256 + options_.special_tokens.size());
  if (options_.vocab_size < least)
    throw ConfigError({.code = "LS1080",
                       .what = cat("vocabulary size ", options_.vocab_size, " has no room for 256 bytes + ",
                                   options_.special_tokens.size(), " special tokens = ", least),
                       .way_out = cat("use ", least, " or more")});
}

void BpeTrainer::add(std::string_view text) {
  if (!is_valid_utf8(text)) return add(replace_invalid_utf8(text));
  pre_tokenizer_.split(text, [this](std::string_view word) {
    ++num_words_;
    const auto found = index_.find(word);
    if (found != index_.end()) {
      ++words_[found->second].second;
    } else {
      index_.emplace(word, words_.size());
      words_.emplace_back(word, 1);
    }
  });
}

BpeVocabulary BpeTrainer::train() const {
  const size_t num_special = options_.special_tokens.size();
  std::array<int32_t, 256> id_of_byte;
  const auto order = ByteAlphabet().in_code_point_order();
  for (size_t i = 0; i < order.size(); ++i) id_of_byte[order[i]] = static_cast<int32_t>(num_special + i);

  std::vector<Word> words;
  words.reserve(words_.size());
  for (const auto& [text, count] : words_) {
    Word& word = words.emplace_back(Word{.symbols = {}, .count = count});
    for (const char byte : text) word.symbols.push_back(id_of_byte[static_cast<uint8_t>(byte)]);
  }
  Merger merger(std::move(words), num_special);
  while (static_cast<int64_t>(num_special + merger.pieces.size()) < options_.vocab_size &&
         merger.step(options_.min_count)) {
  }
  return {.special_tokens = options_.special_tokens,
          .pieces = std::move(merger.pieces),
          .merges = std::move(merger.merges)};
}

std::string BpeVocabulary::tokenizer_json() const {
  const ByteAlphabet alphabet;
  const auto symbols = [&](int32_t id) {
    return alphabet.to_symbols(pieces[static_cast<size_t>(id) - special_tokens.size()]);
  };
  OrderedJson added = OrderedJson::array();
  // nlohmann's ordered object searches linearly for each key, so the vocabulary is written as text.
  std::string vocab;
  const auto add = [&vocab](const std::string& token, size_t id) {
    vocab += cat(vocab.empty() ? "" : ",\n      ", OrderedJson(token).dump(), ": ", id);
  };
  for (size_t i = 0; i < special_tokens.size(); ++i) {
    added.push_back(added_token(special_tokens[i], i));
    add(special_tokens[i], i);
  }
  for (size_t i = 0; i < pieces.size(); ++i) add(alphabet.to_symbols(pieces[i]), special_tokens.size() + i);
  std::string merge_lines;
  for (const auto& [left, right] : merges)
    merge_lines += cat(merge_lines.empty() ? "" : ",\n      ", OrderedJson({symbols(left), symbols(right)}).dump());
  const OrderedJson byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return cat("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": ",
             added.dump(), ",\n  \"normalizer\": null,\n  \"pre_tokenizer\": ", byte_level.dump(),
             ",\n  \"post_processor\": null,\n  \"decoder\": ", byte_level.dump(),
             ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
             "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
             "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {\n      ",
             vocab, "\n    },\n    \"merges\": [\n      ", merge_lines, "\n    ]\n  }\n}\n");
}

}  // namespace lockstep::data
