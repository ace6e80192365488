// The ledger: what was communicated, and in the same form what is predicted. A test asserts predicted == recorded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "lockstep/program/call.h"

namespace lockstep::program {

using arch::Collective;
// kDirect: each rank with every other, or point to point; kExchange: whole buffers, for small ones
enum class Algorithm { kRing, kTree, kHalvingDoubling, kDirect, kExchange };
inline constexpr std::array<std::string_view, 13> kCollectiveNames = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                                                      "broadcast",  "reduce",     "gather",         "scatter",
                                                                      "send",       "recv",       "barrier",        "shift",
                                                                      "shift_back"};
inline constexpr std::array<std::string_view, 5> kAlgorithmNames = {"ring", "tree", "halving-doubling", "direct", "exchange"};
constexpr std::string_view collective_name(Collective collective) { return kCollectiveNames.at(static_cast<size_t>(collective)); }
constexpr std::string_view algorithm_name(Algorithm algorithm) { return kAlgorithmNames.at(static_cast<size_t>(algorithm)); }
static_assert(collective_name(Collective::kBarrier) == "barrier" && algorithm_name(Algorithm::kExchange) == "exchange");

// All calls of one rank with the same key.
struct LedgerKey {
  CallId id{};       // what it was for
  Collective collective = Collective::kAllReduce;
  std::string axis;  // "dp", "tp", "world"
  Algorithm algorithm = Algorithm::kRing;
  auto operator<=>(const LedgerKey&) const = default;
};
// Of a predicted call: whether the data makes its size. Then its bytes are those of balanced routing.
struct AtRunTime {
  bool decided = false;
  int64_t most = 0;        // bytes of its payload at most
  bool in_rounds = false;  // it may be made several times in its place (moe.imbalance_limit), each time with at most so many
  bool operator==(const AtRunTime&) const = default;
};
struct LedgerEntry {
  int64_t count = 0;              // calls
  int64_t payload = 0;            // bytes of the tensor, all calls
  std::map<int, int64_t> sent{};  // world rank of the peer -> bytes this rank put on the link to it
  AtRunTime at_run_time{};        // of each call
  bool operator==(const LedgerEntry&) const = default;
  int64_t sent_total() const;
};

// Not thread-safe: one per rank, guarded by its owner.
class Ledger {
 public:
  // `times` calls, each with this payload and these bytes.
  void add(const LedgerKey& key, int64_t payload, std::map<int, int64_t> sent, int64_t times = 1, const AtRunTime& at_run_time = {});
  void merge(const Ledger& other);
  const std::map<LedgerKey, LedgerEntry>& entries() const { return entries_; }
  // With the text of each call, in the order of the texts: for pages.
  std::vector<std::tuple<std::string, LedgerKey, LedgerEntry>> printed() const;
  bool operator==(const Ledger&) const = default;
  // Lines that say where the two differ; empty where they agree. Of calls whose sizes the data makes there are as many, in rounds as
  // many or more, and none has more bytes than it may have; all others agree in every number.
  static std::vector<std::string> difference(const Ledger& predicted, const Ledger& recorded);

 private:
  std::map<LedgerKey, LedgerEntry> entries_;
};

// One collective over `group` (world ranks, in group order): `numel` elements of `element_size` bytes; `root` is a group index.
struct CollectiveCall {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  std::vector<int> group;
  int64_t numel = 0;  // of the full buffer: all_reduce's tensor, all_gather's output, reduce_scatter's input
  int64_t element_size = 4;
  int root = 0;       // of broadcast, reduce, gather, scatter; the peer of send and recv
};
// Bytes of the full buffer; a barrier counts as the 8 of one int64.
int64_t payload(const CollectiveCall& call);

// Bytes that member `group_rank` sends to each peer under the algorithm; the comm room's algorithms send exactly this.
// Nothing for a group of one; a peer that gets no bytes is not named. InternalError for an algorithm that the collective
// does not have (see supports()).
//
// n ranks, r = this one (all group indices, modulo n). Chunk c = mesh::shard_range(numel, n, c); it may be empty.
//   ring        (Patarasuk & Yuan 2009) everything goes to r + 1.
//     reduce_scatter  n - 1 steps: step s sends chunk r - s - 1 and adds what arrives, chunk r - s - 2; rank r ends with the
//                     sum of chunk r, added in the order of the ranks r + 1, r + 2, ..., r.
//     all_gather      n - 1 steps: step s sends chunk r - s; chunk r - s - 1 arrives.
//     all_reduce      reduce_scatter, then all_gather: 2 (n - 1) steps.
//   tree        binomial, over v = r - root. low(v) = the lowest set bit of v, low(0) = the smallest power of two >= n.
//     broadcast       v > 0 receives from v - low(v); then v sends the whole buffer to v + m for m = low(v) / 2, ..., 2, 1
//                     where v + m < n.
//     reduce          the mirror: v adds what arrives from v + m for m = 1, 2, ... < low(v), then sends to v - low(v).
//     all_reduce      reduce to rank 0, then broadcast from rank 0.
//   halving-doubling (Thakur, Rabenseifner, Gropp 2005), all_reduce only. p = the largest power of two <= n; chunk c here
//     = mesh::shard_range(numel, p, c).
//     fold            rank p + i sends its whole buffer to rank i, which adds it.
//     halving         d = p/2, p/4, ..., 1: r and r ^ d hold the same window of 2d chunks; the one with (r & d) = 0 keeps the
//                     lower half and sends the upper, the other the opposite; what arrives is added. Rank r ends with chunk r.
//     doubling        d = 1, 2, ..., p/2: r sends its window of d chunks, which starts at r & ~(d - 1), to r ^ d.
//     unfold          rank i sends the whole result to rank p + i.
//   direct      every pair by itself.
//     reduce_scatter  r sends chunk c to rank c, for every other c; the owner adds in rank order 0, 1, ..., n - 1.
//     all_gather      r sends chunk r to every other rank.
//     all_reduce      reduce_scatter, then all_gather.
//     reduce          every other rank sends its whole buffer to root, which adds in rank order.
//     broadcast       root sends the whole buffer to every other rank.
//     gather, scatter, all_to_all   chunk r to root; chunk c from root to c; chunk c to rank c.
//     shift           the whole buffer to r + 1; that of r - 1 comes.
//     send            the whole buffer to `root`; recv sends nothing.
//     barrier         all_reduce of one int64.
//   exchange    all_reduce only, in one step: r sends its whole buffer to every other rank, and each adds all in rank order.
//               The bits are those of direct, the bytes n / 2 times as many, the waits half as many.
std::map<int, int64_t> predicted_sends(const CollectiveCall& call, int group_rank);
int64_t predicted_bytes(const CollectiveCall& call, int group_rank);  // to all peers together
bool supports(Collective collective, Algorithm algorithm);

// For an all_reduce of `bytes` that its caller waits for at once: exchange where the second wait of direct would cost more
// than the bytes it saves, else direct. Both give the same bits.
Algorithm prompt_all_reduce(int64_t bytes, int ranks);

}  // namespace lockstep::program
