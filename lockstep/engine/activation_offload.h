// FETCH and EVICT of activations: the inputs of layers that backward needs again, on the host in between (Rajbhandari et
// al. 2021, ZeRO-Infinity, section 5.2).
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <utility>

#include "lockstep/engine/copy_queue.h"
#include "lockstep/engine/memory_tracker.h"

namespace lockstep::engine {

class ActivationOffload {
 public:
  using Key = std::pair<int, int>;  // layer, microbatch

  // `copies` outlives this.
  ActivationOffload(CopyQueue& copies, std::shared_ptr<MemoryAccount> memory);

  // Starts the copy to the host. The device's memory is free once it is done: at the latest before the next evict.
  void evict(Key key, at::Tensor activation);
  // Starts the copy back, into memory taken from the caller's scope.
  void fetch(Key key);
  // What was fetched.
  at::Tensor take(Key key);
  bool fetched(Key key) const { return fetched_.contains(key); }
  void clear();

 private:
  struct Moving {
    at::Tensor device;
    at::Tensor host;
    Copy copy;
  };
  void settle();

  CopyQueue& copies_;
  std::shared_ptr<MemoryAccount> memory_;
  Moving leaving_;                   // the last that was evicted
  std::map<Key, at::Tensor> host_;
  std::map<Key, c10::Device> device_;  // where it came from
  std::map<Key, Moving> fetched_;
};

}  // namespace lockstep::engine
