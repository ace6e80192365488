// What the ranks of an MPI job tell each other besides tensors, and the thread that does it: the keeper. It initialises
// MPI, takes and sends small messages every few milliseconds while the rank computes or waits, and finalises MPI when
// every rank has come to its end.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/group.h"
#include "lockstep/comm/mpi_api.h"
#include "lockstep/comm/mpi_letters.h"

namespace lockstep::comm {

class MpiJob : public std::enable_shared_from_this<MpiJob> {
 public:
  explicit MpiJob(std::unique_ptr<MpiApi> api) : api_(std::move(api)) {}
  struct Deadlines {
    std::chrono::milliseconds joining{};  // of MPI_Init
    std::chrono::milliseconds peers{};    // of signs of life at the end
  };
  // Starts the keeper. PeerLostError LS3002 where MPI_Init takes longer than its deadline; EnvironmentError LS3030.
  void start(const Deadlines& deadlines);
  // Ends the keeper; with `together` only when all ranks do so, and with MPI_Finalize.
  void end(bool together);

  MpiApi& api() { return *api_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(processes_.size()); }
  int64_t pid(int rank) const { return processes_[static_cast<size_t>(rank)].pid; }

  // `key` names a group on all its members.
  std::shared_ptr<MpiMember> open_group(uint64_t key);
  void close_group(uint64_t key, const std::vector<int>& peers);  // and tells them
  void forget_group(uint64_t key);                                // without a word
  // What they say of that group, and why they do not come to it; those that have not answered in time are not in the
  // result. Called by a rank that gives up, of its own groups and those of others.
  std::map<int, MpiMember::Status> ask(uint64_t key, const std::vector<int>& ranks);

  std::optional<MpiMember::Status> closed(uint64_t key, int rank) const;  // its last, where it has closed the group
  bool has_died(int rank) const;  // known of processes of this host alone

  void abort(const std::string& reason);
  struct Abort {
    int rank = 0;
    std::string reason;
  };
  std::optional<Abort> aborted() const;
  std::string failure() const;  // of MPI itself, as seen by the keeper; empty: none
  // Either of the two: cheap enough to look at while polling.
  bool disturbed() const { return disturbed_; }

  // Holds memory that MPI may still write to or read from until the process ends. The job cannot end together any more.
  void keep_for_good(std::shared_ptr<void> memory);

 private:
  struct Outgoing {
    std::string bytes;
    MpiRequest request;
  };
  void keep(std::promise<bool> ready);
  void end_together();
  bool somebody_is_lost() const;
  void handle_mail();
  void handle(const MpiApi::Arrived& letter);
  void post(int rank, const MpiLetter& letter);
  MpiMember::Status own_status(uint64_t key) const;  // with mutex_
  bool deliver();  // all letters are on their way

  std::unique_ptr<MpiApi> api_;
  std::chrono::milliseconds deadline_{};
  int rank_ = 0;
  std::vector<MpiProcess> processes_;
  std::thread keeper_;
  std::promise<void> all_left_;
  std::promise<void> ended_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::list<Outgoing> letters_;
  std::map<uint64_t, std::shared_ptr<MpiMember>> groups_;
  std::map<uint64_t, std::map<int, MpiMember::Status>> closed_;  // by their members, with their last status
  std::map<int, MpiMember::Status> answers_;  // to the latest question
  int64_t question_ = 0;
  int asking_ = 0;
  std::vector<std::chrono::steady_clock::time_point> last_sign_;  // of life, by rank
  std::optional<Abort> abort_;
  std::string failure_;
  std::vector<std::shared_ptr<void>> kept_;
  enum class Ending { kNone, kAlone, kTogether } ending_ = Ending::kNone;
  std::mutex asking_mutex_;  // one question at a time

  std::atomic<bool> disturbed_ = false;
};

}  // namespace lockstep::comm
