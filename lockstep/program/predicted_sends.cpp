// What each algorithm of ledger.h puts on the links.
#include <algorithm>
#include <bit>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/mesh/placement.h"
#include "lockstep/program/ledger.h"

namespace lockstep::program {
namespace {

constexpr int64_t kBarrierBytes = 8;  // of one int64, which it sums

// The sends of one member; without `by_peer` the sum of all alone.
class Sends {
 public:
  Sends(const CollectiveCall& call, int rank, bool by_peer)
      : call_(call),
        numel_(call.collective == Collective::kBarrier ? 1 : call.numel),
        element_size_(call.collective == Collective::kBarrier ? kBarrierBytes : call.element_size),
        rank_(rank),
        size_(static_cast<int>(call.group.size())),
        by_peer_(by_peer) {
    LOCKSTEP_CHECK(supports(call.collective, call.algorithm), collective_name(call.collective), " by ",
                   algorithm_name(call.algorithm));
    LOCKSTEP_CHECK(rank >= 0 && rank < size_ && call.root >= 0 && call.root < size_, "rank ", rank, ", root ", call.root,
                   " of ", size_);
    if (size_ > 1) run();
  }

  int64_t total() const { return total_; }
  std::map<int, int64_t> take() { return std::move(bytes_); }

 private:
  void run() {
    switch (call_.collective) {
      case Collective::kBarrier:
      case Collective::kAllReduce:
        return all_reduce();
      case Collective::kAllGather:
        return all_gather();
      case Collective::kReduceScatter:
      case Collective::kAllToAll:  // the same messages: chunk c to rank c
        return reduce_scatter();
      case Collective::kBroadcast:
        return broadcast(call_.root);
      case Collective::kReduce:
        return reduce(call_.root);
      case Collective::kGather:
        return send(call_.root, chunk(rank_));
      case Collective::kScatter:
        if (rank_ == call_.root) reduce_scatter();
        return;
      case Collective::kShift:
        return send(rank_ + 1, numel_);
      case Collective::kShiftBack:
        return send(rank_ - 1 + size_, numel_);
      case Collective::kSend:
        return send(call_.root, numel_);
      case Collective::kRecv:
        return;
    }
  }

  // Around the ring goes every chunk but the one that ends here; of the others' chunks those behind the last element are empty.
  void reduce_scatter() {
    if (call_.algorithm == Algorithm::kRing) return send(rank_ + 1, numel_ - chunk(rank_));
    const auto filled = static_cast<int>(std::min<int64_t>(size_, numel_));
    for (int c = 0; c < filled; ++c) send(c, chunk(c));
  }

  // And every chunk but the one that the next rank began with.
  void all_gather() {
    if (call_.algorithm == Algorithm::kRing) return send(rank_ + 1, numel_ - chunk(rank_ + 1));
    const int64_t own = chunk(rank_);
    for (int c = 0; own > 0 && c < size_; ++c) send(c, own);
  }

  void broadcast(int root) {
    if (call_.algorithm == Algorithm::kDirect) {
      for (int c = 0; rank_ == root && c < size_; ++c) send(c, numel_);
      return;
    }
    const int v = wrap(rank_ - root);
    for (int m = low(v) / 2; m > 0; m /= 2) {
      if (v + m < size_) send(root + v + m, numel_);
    }
  }

  void reduce(int root) {
    if (call_.algorithm == Algorithm::kDirect) return send(root, numel_);
    const int v = wrap(rank_ - root);
    if (v > 0) send(root + v - low(v), numel_);
  }

  void halving_doubling() {
    const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(size_)));
    if (rank_ >= p) return send(rank_ - p, numel_);  // fold
    for (int d = p / 2; d > 0; d /= 2) {
      const int partner = rank_ ^ d;
      send(partner, window(partner & ~(d - 1), d, p));  // halving sends the half that the partner keeps
      send(partner, window(rank_ & ~(d - 1), d, p));    // doubling sends the own half back
    }
    if (rank_ + p < size_) send(rank_ + p, numel_);  // unfold
  }

  void all_reduce() {
    if (call_.algorithm == Algorithm::kHalvingDoubling) return halving_doubling();
    if (call_.algorithm == Algorithm::kTree) {
      reduce(0);
      return broadcast(0);
    }
    if (call_.algorithm == Algorithm::kExchange) {
      for (int c = 0; c < size_; ++c) send(c, numel_);
      return;
    }
    reduce_scatter();
    all_gather();
  }

  int wrap(int index) const { return ((index % size_) + size_) % size_; }
  int64_t chunk(int index) const { return mesh::shard_range(numel_, size_, wrap(index)).size(); }
  int64_t window(int first, int count, int parts) const {
    return mesh::shard_range(numel_, parts, first + count - 1).end -
           mesh::shard_range(numel_, parts, first).begin;
  }
  int low(int v) const { return v == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size_))) : (v & -v); }
  void send(int peer, int64_t numel) {
    if (wrap(peer) == rank_ || numel <= 0) return;
    total_ += numel * element_size_;
    if (!by_peer_) return;
    const int to = call_.group[static_cast<size_t>(wrap(peer))];
    // Most go to one peer after the other: as many as there are ranks in a small direct call.
    bytes_.try_emplace(bytes_.end(), to, 0)->second += numel * element_size_;
  }

  const CollectiveCall& call_;
  const int64_t numel_, element_size_;
  const int rank_;
  const int size_;
  const bool by_peer_;
  int64_t total_ = 0;
  std::map<int, int64_t> bytes_;
};

}  // namespace

int64_t payload(const CollectiveCall& call) {
  return call.collective == Collective::kBarrier ? kBarrierBytes : call.numel * call.element_size;
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
  return Sends(call, group_rank, true).take();
}

int64_t predicted_bytes(const CollectiveCall& call, int group_rank) { return Sends(call, group_rank, false).total(); }

}  // namespace lockstep::program
