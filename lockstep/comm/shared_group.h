// One group of the shared-memory backend, seen from one member: where its block lies, what the members know of each
// other, and how one waits for another.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/region_layout.h"
#include "lockstep/comm/transport.h"
#include "lockstep/launch/shared_region.h"

namespace lockstep::comm {

inline constexpr std::chrono::milliseconds kSlice{50};  // of sleep, between two looks at the peers' health

RegionHeader& header_of(const launch::SharedRegion& region);
void relax();  // a moment within a loop that looks at memory
// Sleeps while the word is `seen`, until it is woken or the time has passed. The kernel knows the word by its memory, so
// that ranks in several processes may share it.
void sleep_on(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::milliseconds time);
void wake_all(std::atomic<uint32_t>& word);
void ring_bell(Member& member);

class SharedGroup {
 public:
  struct Options {
    GroupBlock block;
    std::vector<int> ranks;  // world ranks in group order
    int rank = 0;            // of this member in the group
    std::string name;
    std::function<void(const Progress&)> watch{};
  };
  SharedGroup(std::shared_ptr<const launch::SharedRegion> region, Options options);

  int rank() const { return options_.rank; }
  int size() const { return static_cast<int>(options_.ranks.size()); }
  const GroupBlock& block() const { return options_.block; }
  Member& member(int rank) const { return options_.block.member(rank); }
  Member& me() const { return member(rank()); }
  int ranks_of_host() const { return header_of(*region_).world_size.load(); }
  const CallLabel& call() const { return call_; }
  int64_t sequence() const { return sequence_; }

  void publish(const Progress& progress);
  void add_awaiting(int change) { me().awaited.fetch_add(change, std::memory_order_relaxed); }
  void cancel();  // by any thread
  void close();   // tells the peers that this member has left

  // A wait for a peer. `look_around` is called now and then: it throws where the job was aborted, the deadline has passed
  // or the peer is gone; of the last it is sure only when it finds it twice, so that the caller looks once more
  // at what the peer left.
  struct Wait {
    Deadline began;
    Deadline deadline;
    bool gone = false;
  };
  void look_around(Wait& wait, int peer) const;
  void wait_for(int peer, bool its_bytes);  // else for room for bytes to it
  void wait_no_more() { me().waits_for.store(0); }
  // The longest sleep until the next look.
  static std::chrono::milliseconds slice(const Wait& wait);

 private:
  const RankRecord& record(int member) const {
    return header_of(*region_).ranks[static_cast<size_t>(world_rank(member))];
  }
  int world_rank(int member) const { return options_.ranks[static_cast<size_t>(member)]; }
  bool gone(int member) const;
  void check_abort() const;
  PeerLostError lost(int peer, Deadline began) const;
  MemberReport report(int member) const;

  std::shared_ptr<const launch::SharedRegion> region_;
  Options options_;
  CallLabel call_ = named_label("a call");
  int64_t sequence_ = 0;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace lockstep::comm
