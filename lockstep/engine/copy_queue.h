// Copies between device, host and disk beside the work of a rank (Cui et al. 2016, GeePS). Between host and disk a thread of
// their own makes them, one after the other. Between host and device they are put on a stream of their own at once, by the
// caller: nobody waits on the host unless it reads or writes the bytes itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/engine/device_copy.h"

namespace lockstep::engine {

// What the copies took, and for how much of it the host stood still. What a GPU's compute stream waited for a copy is not
// known to the host and not in here. Copies count when they are asked for, their seconds once they are seen to have ended.
struct CopyTotals {
  int64_t copies = 0;
  int64_t bytes = 0;
  double seconds = 0;
  double exposed_seconds = 0;
  CopyTotals& operator+=(const CopyTotals& other);
  double hidden() const;  // share of `seconds` that the host did not wait for, 0 to 1; 1 where nothing was copied
};

struct CopyState;
struct CopyThread;

// One copy; a default one is done. Both calls throw what it or an earlier one of the thread threw, EnvironmentError LS4014 past
// the deadline, and return at once when they are made again.
class Copy {
 public:
  // The host waits until the copy is done: before it reads or writes the bytes itself.
  void wait();
  // What the device's current stream is given from now on comes behind the copy: before kernels read or write the bytes, or
  // their memory is given back. The host waits for the thread's part alone; where neither side is a device, that is wait().
  void order_after();

 private:
  friend class CopyQueue;
  std::shared_ptr<CopyState> state_;
};

// Used by one thread.
class CopyQueue {
 public:
  explicit CopyQueue(std::chrono::milliseconds deadline = std::chrono::minutes(10));  // of one wait
  // Copies of the thread that have not begun are left out; the one that runs is waited for, up to the deadline. The current
  // stream is ordered behind those of a device.
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  // to = from, of the same number of elements; both contiguous; fp32 may become bf16, which is rounded on the host. Kernels
  // that the caller has queued on a GPU run before it. Where one side is a GPU, the other is pinned memory; copies of one
  // direction then follow each other, but not the thread's work. It holds both tensors until it is done or the stream is
  // ordered behind it (device_copy.h).
  Copy copy(at::Tensor from, at::Tensor to, std::string what);
  // The thread has `write` fill host memory of the shape and type of `to`: its own, or pinned memory that is then copied there.
  Copy fill(at::Tensor to, std::string what, std::function<void(const at::Tensor& host)> write);
  // Any other work of `bytes`, by the thread. `what` names it in errors: "blocks.3 to disk". Throws what an earlier copy threw:
  // after it no other begins.
  Copy start(std::string what, int64_t bytes, std::function<void()> body);
  // All of them, on the host.
  void wait();

  CopyTotals take_totals();

 private:
  std::shared_ptr<DeviceCopy> across(c10::Device device, std::optional<c10::Stream>& stream);
  Copy add(CopyState state);

  std::shared_ptr<CopyThread> shared_;
  std::optional<c10::Stream> to_device_, to_host_;  // two, since a link carries both directions at a time
};

}  // namespace lockstep::engine
