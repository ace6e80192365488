// What ranks tell each other besides tensors, as notes in the store: what each is doing, and that one has stopped the job.
// For backends whose network does not tell who is missing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/rendezvous.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

// Thread-safe. What the store throws (its process has gone) passes through.
class JobBoard {
 public:
  JobBoard(std::shared_ptr<Store> store, int rank);

  int rank() const { return rank_; }

  // Of this rank, on the group of that name; stays here until publish(). Nothing goes back to an earlier collective.
  void set(const std::string& group, const Progress& progress);
  // Whom this rank waits for there (world rank, -1: nobody), and `change` more of its threads that cannot go on until a call
  // of that group is done.
  void set_wait(const std::string& group, int waits_for);
  void add_awaiting(const std::string& group, int change);
  void publish();  // once a second: a rank whose note stays the same is silent

  // What is known of `rank` on that group (of the key of its name): kNeverJoined where it has published nothing.
  MemberReport report(int rank, const std::string& group);
  MemberReport report(int rank, uint64_t group);
  std::vector<GroupWait> waits(int rank);  // by what it published last; empty where it has published nothing
  static uint64_t key(const std::string& group);
  // Which publish() of that rank the store holds; 0: none.
  int64_t beat(int rank);

  void abort(const std::string& reason);  // the first reason is the one that counts
  struct Abort {
    int rank = 0;
    std::string reason;
  };
  std::optional<Abort> aborted();

  // This rank aborts its calls on the device, of which its peers' may then look done. Once this returns, given_up() tells it
  // to every rank that asks. The last word stays.
  void give_up(const std::string& reason);
  std::optional<Abort> given_up();

 private:
  struct Doing {
    Progress progress;
    Deadline changed{};
    int waits_for = -1;
    int awaiting = 0;  // threads
  };
  std::string own_note(int64_t number) const;

  std::shared_ptr<Store> store_;
  const int rank_;
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, Doing> doing_;
  int64_t published_ = 0;
};

// Who keeps `own` waiting on the group: the first member that has not entered the call it is in, else the first whose
// publish() has not come since `beats` were taken; none where all are there and alive.
std::optional<MemberReport> missing_member(JobBoard& board, const std::string& group, const std::vector<int>& ranks,
                                           const MemberReport& own, const std::map<int, int64_t>& beats);

// How `first` comes to wait for the rank that is missing (follow_waits), and what is known of that one. A rank that is
// among `silent` is missing, whatever it said last.
struct Missing {
  std::vector<Waiting> chain;
  MemberReport report;
};
Missing follow_on_board(JobBoard& board, const Waiting& first, const std::set<int>& silent);

}  // namespace lockstep::comm
