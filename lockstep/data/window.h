// A sequence of training data with all that its tokens must be told: what comes next, their positions, which tokens they see. All of it
// is cut together for the ranks that share a sequence, so nothing follows from where a token lies on a rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

inline constexpr int64_t kNoTarget = -100;  // of a token that counts in no loss

// T tokens: a whole sequence of S = T, or those of a rank. Fill is token 0 at position 0 with no target; it sees itself alone.
struct Window {
  std::vector<int64_t> tokens{};
  std::vector<int64_t> targets{};     // the next token, or kNoTarget
  std::vector<int64_t> positions{};   // below S
  std::vector<int32_t> places{};      // in the sequence, ascending; from S on: fill behind its end
  std::vector<int32_t> first_seen{};  // the place of the first token that it may see

  int64_t valid_targets() const;
  // Of a whole sequence: the places of tokens that see none before them, ascending; where documents begin that do not see each other, and
  // all fill.
  std::vector<int32_t> documents() const;
  // One document in order: all see the first token, positions are places.
  bool plain() const;
};

// What tokens know of documents.
struct DocumentRules {
  bool mask = false;             // they see their own alone, and no target is another's token
  bool reset_positions = false;  // positions count from its first token in the sequence
};

// A sequence of `seq_len` fill tokens, to be written over from its beginning.
Window empty_window(int64_t seq_len);
// Says of the first `tokens` tokens of a whole sequence that documents begin at `begins`, the first at 0.
void set_documents(Window& window, int64_t tokens, std::span<const int32_t> begins, const DocumentRules& rules);

// The tokens at `places` of a whole sequence with what belongs to each; from S on fill.
Window cut(const Window& whole, std::span<const int32_t> places);

}  // namespace lockstep::data
