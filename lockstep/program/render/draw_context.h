// How the ranks of cp share a sequence: whose tokens, whose keys and values at which step of a ring (Liu et al., Ring Attention, 2023), how
// much of attention's work that is, and what each mode sends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/program/layout.h"

namespace lockstep::program {

struct ContextQuestion {
  std::vector<int32_t> documents{0};  // where each document of the sequence begins, the first at 0
  double flops = 0;                   // FLOP/s of a rank in attention's products; 0: not told
  double bandwidth = 0;               // bytes/s of its link; 0: not told
  // Of sequences of a data file where their documents begin, and a line about all of it.
  std::vector<std::vector<int32_t>> sequences{};
  std::string about_sequences{};
};

// Of layers with attention the first of each window, ascending; none where no layer has any. Of a model in which layers differ what
// follows is that of the first of them, and with of_layer() that of each.
std::vector<int> attention_layers(const arch::ModelConfig& model);
// The layout of a model whose blocks are all that layer's attention, or its state space.
Layout of_layer(const Layout& layout, int layer);

// The ranks of cp that rank 0 shares sequences with, in their order.
std::vector<int> context_ranks(const Layout& layout);

// By rank of cp the places of its tokens that are in the sequence; each has as many once filled up to Layout::tokens_here().
std::vector<std::vector<int32_t>> tokens_of_ranks(const Layout& layout, config::ContextSplit split, const std::vector<int32_t>& documents);

// Pairs of a query and a key that a member of the ring works on at each step. At step t member r has the keys and values of member
// r - t. A member is a rank, with 2d `context_inner` neighbours, each of which works on its own heads.
struct RingWork {
  std::vector<std::vector<int64_t>> pairs{};  // [member][step]
  int members() const { return static_cast<int>(pairs.size()); }
  static int holder(int member, int step, int members) { return (member - step % members + members) % members; }
  int64_t of_member(int member) const;
  int64_t all() const;
  int64_t slowest(int step) const;  // the most of any member
  double busiest() const;           // member's work over the mean
  // Of a ring whose members wait for the slowest one at every step: its time over that of equal parts.
  double imbalance() const;
};
RingWork ring_work(const Layout& layout, config::ContextSplit split, const std::vector<int32_t>& documents);

// Bytes that a rank sends in a block for each token that it holds, as planned; with several ranks of tp those of its heads.
struct ContextBytes {
  config::ContextKind kind = config::ContextKind::kRing;
  int inner = 1;  // of 2d
  double forward = 0, backward = 0;
  double all() const { return forward + backward; }
};
std::string text_of(const ContextBytes& bytes);  // "2d, inner 2"
// Of every mode that these ranks could have, 2d with each divisor of cp: no more ranks exchange heads than there are. Empty without attention.
std::vector<ContextBytes> context_bytes(const Layout& layout);

// The same of a state space, which passes the ends of pieces on in one way. Of a model that has some.
ContextBytes state_space_bytes(const Layout& layout);

// Tokens of the end of each piece that go to who has the next one, where the ring sends no more than these (arch::ContextShard::window_ends);
// 0: keys and values go round, or are no ring's.
int64_t window_ends(const Layout& layout);

// When a step's messages of the ring take as long as its products: causal attention within one document.
struct RingBalance {
  double bytes = 0;     // of the messages of a step for each token that comes
  double flops = 0;     // of a pair of a query and a key, all heads
  double share = 1;     // of all pairs of a step that the slowest rank works on: zigzag 1/2
  int tokens_of_inner = 1;  // ranks whose tokens come at once
  // Tokens of a sequence on a rank from which on messages stay behind products, over FLOP/s / (bytes/s).
  double intensity() const { return bytes / (flops * share) / tokens_of_inner; }
};
struct RingBalances {
  RingBalance forward{}, backward{};
};
// Of the layout's ring, or of that across the groups of 2d. Empty bytes where its ranks are no ring.
RingBalances ring_balances(const Layout& layout);

// All of it as a page, of attention for every window that layers have, and of state spaces. With one rank of cp a line that says so.
std::string draw_context(const Layout& layout, const ContextQuestion& question);

}  // namespace lockstep::program
