// The ledger: what was communicated, and in the same form what is predicted. A test asserts predicted == recorded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace lockstep::program {

enum class Collective { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kReduce, kGather, kScatter, kSend, kRecv, kBarrier };
enum class Algorithm { kRing, kTree, kHalvingDoubling, kDirect };  // kDirect: each rank with every other, or point to point
std::string_view collective_name(Collective collective);
std::string_view algorithm_name(Algorithm algorithm);

// All calls of one rank with the same key.
struct LedgerKey {
  std::string site;  // what it was for: "reduce_grad bucket 0", "loss", "push bucket 1"
  Collective collective = Collective::kAllReduce;
  std::string axis;  // "dp", "tp", "world"
  Algorithm algorithm = Algorithm::kRing;
  auto operator<=>(const LedgerKey&) const = default;
};
struct LedgerEntry {
  int64_t count = 0;                 // calls
  int64_t payload = 0;               // bytes of the tensor, all calls
  std::map<int, int64_t> sent{};     // world rank of the peer -> bytes this rank put on the link to it
  bool operator==(const LedgerEntry&) const = default;
  int64_t sent_total() const;
};

// Not thread-safe: one per rank, guarded by its owner.
class Ledger {
 public:
  void add(const LedgerKey& key, int64_t payload, const std::map<int, int64_t>& sent);
  void merge(const Ledger& other);
  void clear() { entries_.clear(); }
  const std::map<LedgerKey, LedgerEntry>& entries() const { return entries_; }
  int64_t sent_total() const;
  bool operator==(const Ledger&) const = default;
  // Lines that say where the two differ; empty where they agree.
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
  int root = 0;
};
// Bytes that member `group_rank` sends to each peer under the algorithm; the comm room's algorithms send exactly this.
// Chunks are mesh::shard_range(numel, n, i). Nothing for a group of one.
std::map<int, int64_t> predicted_sends(const CollectiveCall& call, int group_rank);

}  // namespace lockstep::program
