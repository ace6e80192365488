// The calls of one group under NCCL. They are launched by the thread that makes them, in its order: NCCL asks that all
// ranks launch the calls of all their groups alike, which calls on threads of their own would not keep.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/job_board.h"
#include "lockstep/comm/native.h"
#include "lockstep/comm/nccl_api.h"
#include "lockstep/comm/nccl_verdict.h"

namespace lockstep::comm {

struct NcclLaneOptions {
  std::string name;        // "dp[0,1,2]"
  std::vector<int> ranks;  // world ranks in group order
  std::chrono::milliseconds deadline{60000};
};

// An ncclComm_t and its calls in flight. join(), start() and close() belong to the caller's thread, look() and fail() to
// any. The tensors of a call stay alive until the caller's stream is ordered behind it.
//
// The deadline of a call counts from when the caller's stream has reached it on the device and those before it on this
// group are done: time that this rank computes is not time that it waits.
class NcclLane {
 public:
  NcclLane(std::unique_ptr<NcclGroup> group, std::shared_ptr<JobBoard> board, std::shared_ptr<NcclVerdict> verdict,
           NcclLaneOptions options);
  NcclLane(const NcclLane&) = delete;
  NcclLane& operator=(const NcclLane&) = delete;

  // Until all ranks have joined. PeerLostError LS3002 naming one that has not; EnvironmentError LS3042.
  void join();
  std::shared_ptr<NativeWork> start(NativeCall call);
  // Lets calls in flight end and closes the group, or aborts it where it runs because of an exception. The last call: what
  // a NativeCall refers to is not used afterwards.
  void close() noexcept;
  // Takes note of calls that are done, and gives up where one fails or waits too long. The failure, where there is one.
  std::exception_ptr look();
  // From now on everything throws `problem`, and so do all groups of the verdict. What runs on the device is aborted.
  void fail(std::exception_ptr problem);

 private:
  class Flight;
  using Clock = std::chrono::steady_clock;

  void wait_until_ready(const Progress& progress);  // of group_
  void take_done();
  bool in_flight() const;
  void give_up(std::exception_ptr problem);
  std::exception_ptr overdue(const Progress& progress, double waited_seconds);

  const NcclLaneOptions options_;
  const std::shared_ptr<JobBoard> board_;
  const std::shared_ptr<NcclVerdict> verdict_;  // of all groups of this rank
  const int exceptions_at_start_ = std::uncaught_exceptions();

  std::mutex looking_;               // one look at a time; taken before mutex_
  std::map<int, int64_t> beats_;     // of the peers, when the first call in flight had waited half its time
  const Flight* watched_ = nullptr;  // that call

  mutable std::mutex mutex_;          // guards what follows; never held while waiting for a peer
  std::unique_ptr<NcclGroup> group_;  // null when closed
  std::deque<std::shared_ptr<Flight>> flights_;
  const Flight* launching_ = nullptr;
  std::exception_ptr failure_;
};

// EnvironmentError LS3042, or PeerLostError LS3002 where NCCL says that it is a peer. `doing`: "all_reduce #3 'grad' ...".
std::exception_ptr nccl_problem(const NcclFailure& failure, const std::string& doing);

}  // namespace lockstep::comm
