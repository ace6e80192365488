// What each algorithm of ledger.h puts on the links.
#include <algorithm>
#include <bit>

#include "lockstep/base/check.h"
#include "lockstep/mesh/placement.h"
#include "lockstep/program/ledger.h"

namespace lockstep::program {
namespace {

// The sends of one member, added up in elements.
class Sends {
 public:
  Sends(const CollectiveCall& call, int rank) : call_(call), rank_(rank), size_(static_cast<int>(call.group.size())) {}

  // Around the ring goes every chunk but the one that ends here; of the others' chunks those behind the last element are empty.
  void reduce_scatter() {
    if (call_.algorithm == Algorithm::kRing) return send(rank_ + 1, call_.numel - chunk(rank_));
    const auto filled = static_cast<int>(std::min<int64_t>(size_, call_.numel));
    for (int c = 0; c < filled; ++c) send(c, chunk(c));
  }

  // And every chunk but the one that the next rank began with.
  void all_gather() {
    if (call_.algorithm == Algorithm::kRing) return send(rank_ + 1, call_.numel - chunk(rank_ + 1));
    const int64_t own = chunk(rank_);
    for (int c = 0; own > 0 && c < size_; ++c) send(c, own);
  }

  void broadcast(int root) {
    if (call_.algorithm == Algorithm::kDirect) {
      for (int c = 0; rank_ == root && c < size_; ++c) send(c, call_.numel);
      return;
    }
    const int v = wrap(rank_ - root);
    for (int m = low(v) / 2; m > 0; m /= 2) {
      if (v + m < size_) send(root + v + m, call_.numel);
    }
  }

  void reduce(int root) {
    if (call_.algorithm == Algorithm::kDirect) {
      send(root, call_.numel);
      return;
    }
    const int v = wrap(rank_ - root);
    if (v > 0) send(root + v - low(v), call_.numel);
  }

  void halving_doubling() {
    const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(size_)));
    if (rank_ >= p) {
      send(rank_ - p, call_.numel);  // fold
      return;
    }
    for (int d = p / 2; d > 0; d /= 2) {
      const int partner = rank_ ^ d;
      send(partner, window(partner & ~(d - 1), d, p));  // halving sends the half that the partner keeps
      send(partner, window(rank_ & ~(d - 1), d, p));    // doubling sends the own half back
    }
    if (rank_ + p < size_) send(rank_ + p, call_.numel);  // unfold
  }

  void exchange() {
    for (int c = 0; c < size_; ++c) send(c, call_.numel);
  }

  void gather() { send(call_.root, chunk(rank_)); }
  void scatter() {
    for (int c = 0; rank_ == call_.root && c < size_; ++c) send(c, chunk(c));
  }
  void to_peer() { send(call_.root, call_.numel); }

  std::map<int, int64_t> bytes() const { return bytes_; }

 private:
  int wrap(int index) const { return ((index % size_) + size_) % size_; }
  int64_t chunk(int index) const { return mesh::shard_range(call_.numel, size_, wrap(index)).size(); }
  int64_t window(int first, int count, int parts) const {
    return mesh::shard_range(call_.numel, parts, first + count - 1).end -
           mesh::shard_range(call_.numel, parts, first).begin;
  }
  int low(int v) const { return v == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size_))) : (v & -v); }
  void send(int peer, int64_t numel) {
    if (wrap(peer) == rank_ || numel <= 0) return;
    const int to = call_.group[static_cast<size_t>(wrap(peer))];
    // Most go to one peer after the other: as many as there are ranks in a small direct call.
    bytes_.try_emplace(bytes_.end(), to, 0)->second += numel * call_.element_size;
  }

  const CollectiveCall& call_;
  const int rank_;
  const int size_;
  std::map<int, int64_t> bytes_;
};

}  // namespace

int64_t payload(const CollectiveCall& call) {
  return call.collective == Collective::kBarrier ? 8 : call.numel * call.element_size;
}

bool supports(Collective collective, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kDirect:
      return true;
    case Algorithm::kRing:
      return collective == Collective::kAllReduce || collective == Collective::kAllGather ||
             collective == Collective::kReduceScatter;
    case Algorithm::kTree:
      return collective == Collective::kAllReduce || collective == Collective::kBroadcast ||
             collective == Collective::kReduce;
    case Algorithm::kHalvingDoubling:
    case Algorithm::kExchange:
      return collective == Collective::kAllReduce;
  }
  throw InternalError("no such algorithm");
}

Algorithm prompt_all_reduce(int64_t bytes, int ranks) {
  constexpr int64_t kBytesPerWait = 64 * 1024;  // what a core copies while it would wait once more
  return bytes * (ranks - 2) <= kBytesPerWait * 2 ? Algorithm::kExchange : Algorithm::kDirect;
}

std::map<int, int64_t> predicted_sends(const CollectiveCall& call, int group_rank) {
  LOCKSTEP_CHECK(supports(call.collective, call.algorithm), collective_name(call.collective), " by ",
                 algorithm_name(call.algorithm));
  const int size = static_cast<int>(call.group.size());
  LOCKSTEP_CHECK(group_rank >= 0 && group_rank < size && call.root >= 0 && call.root < size, "rank ", group_rank,
                 ", root ", call.root, " of ", size);
  if (size == 1) return {};
  Sends sends(call, group_rank);
  switch (call.collective) {
    case Collective::kAllReduce:
      if (call.algorithm == Algorithm::kHalvingDoubling) {
        sends.halving_doubling();
      } else if (call.algorithm == Algorithm::kExchange) {
        sends.exchange();
      } else if (call.algorithm == Algorithm::kTree) {
        sends.reduce(0);
        sends.broadcast(0);
      } else {
        sends.reduce_scatter();
        sends.all_gather();
      }
      break;
    case Collective::kAllGather:
      sends.all_gather();
      break;
    case Collective::kReduceScatter:
      sends.reduce_scatter();
      break;
    case Collective::kAllToAll: {
      sends.reduce_scatter();  // the same messages: chunk c to rank c
      break;
    }
    case Collective::kBroadcast:
      sends.broadcast(call.root);
      break;
    case Collective::kReduce:
      sends.reduce(call.root);
      break;
    case Collective::kGather:
      sends.gather();
      break;
    case Collective::kScatter:
      sends.scatter();
      break;
    case Collective::kSend:
      sends.to_peer();
      break;
    case Collective::kRecv:
      break;
    case Collective::kBarrier:
      return predicted_sends({.collective = Collective::kAllReduce,
                              .algorithm = Algorithm::kDirect,
                              .group = call.group,
                              .numel = 1,
                              .element_size = 8},
                             group_rank);
  }
  return sends.bytes();
}

}  // namespace lockstep::program
