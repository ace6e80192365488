// Copies between device, host and disk, made one after the other by a thread of their own beside the work of a rank
// (Cui et al. 2016, GeePS). On a GPU the thread copies on a stream of its own, so that kernels go on.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lockstep::engine {

struct CopyQueueOptions {
  int64_t max_bytes = 0;  // of copies that are not done; one that is larger goes alone; 0 = no bound
  std::chrono::milliseconds deadline{600000};  // of one wait
};

// What the copies took, and for how much of it somebody stood still. Copies count when they are asked for, their seconds
// when they end.
struct CopyTotals {
  int64_t copies = 0;
  int64_t bytes = 0;
  double seconds = 0;
  double exposed_seconds = 0;
  CopyTotals& operator+=(const CopyTotals& other);
  double hidden() const;  // share of `seconds` that nobody waited for, 0 to 1; 1 where nothing was copied
};

struct CopyState;
struct CopyThread;

// One copy; a default one is done.
class Copy {
 public:
  // Returns when the copy is done, and throws what it or an earlier one threw; a second call returns at once.
  // EnvironmentError LS4014 past the deadline.
  void wait();

 private:
  friend class CopyQueue;
  std::shared_ptr<CopyState> state_;
};

// Used by one thread.
class CopyQueue {
 public:
  explicit CopyQueue(CopyQueueOptions options = {});
  // Copies that have not begun are left out; the one that runs is waited for, up to the deadline.
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  // to = from, of the same number of elements; both contiguous. Kernels that the caller has queued on a GPU run before it.
  // It holds both tensors until it is done.
  Copy copy(at::Tensor from, at::Tensor to, std::string what);
  // Any other work of `bytes`. `what` names it in errors: "blocks.3 to disk". Waits for room below max_bytes, and throws
  // what an earlier copy threw: after it no other begins.
  Copy start(std::string what, int64_t bytes, std::function<void()> body);
  // All of them.
  void wait();

  CopyTotals take_totals();

 private:
  std::shared_ptr<CopyThread> shared_;
};

}  // namespace lockstep::engine
