// What the calls of a world have failed with. A call that is aborted looks done on the device: to the stream behind it and,
// where it has handed on what it had, to its peers. So a failure stands here before anything is aborted.
#pragma once

#include <exception>
#include <memory>
#include <mutex>

#include "lockstep/comm/job_board.h"

namespace lockstep::comm {

// Thread-safe.
class NcclVerdict {
 public:
  explicit NcclVerdict(std::shared_ptr<JobBoard> board) : board_(std::move(board)) {}
  NcclVerdict(const NcclVerdict&) = delete;
  NcclVerdict& operator=(const NcclVerdict&) = delete;

  // The first failure stays. When it returns, every rank that asks is told.
  void fail(const std::exception_ptr& problem);
  std::exception_ptr failure() const;  // of this rank's calls; null while all is well
  // Throws that, or PeerLostError LS3003 where another rank has given up.
  void confirm();

 private:
  const std::shared_ptr<JobBoard> board_;
  mutable std::mutex mutex_;  // held while the store is told: who comes second may abort as well
  std::exception_ptr failure_;
};

}  // namespace lockstep::comm
