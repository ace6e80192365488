// FETCH and EVICT of activations: the inputs of layers that backward needs again, on the host in between (Rajbhandari et
// al. 2021, ZeRO-Infinity, section 5.2).
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/engine/copy_queue.h"
#include "lockstep/engine/memory_tracker.h"

namespace lockstep::engine {

// On a GPU none of this waits on the host: its stream waits where the bytes or the memory ask for it. Host memory is pinned
// there, and kept for the next step.
class ActivationOffload {
 public:
  using Key = std::pair<int, int>;  // layer, microbatch

  // `copies` outlives this.
  ActivationOffload(CopyQueue& copies, std::shared_ptr<MemoryAccount> memory);

  // Starts the copy to the host. The device's memory goes back behind it, at the latest with the next evict or fetch: one
  // input is on its way out while the next is made.
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
  at::Tensor host_memory(const at::Tensor& like);

  CopyQueue& copies_;
  std::shared_ptr<MemoryAccount> memory_;
  Moving leaving_;                   // the last that was evicted
  std::map<Key, at::Tensor> host_;
  std::map<Key, c10::Device> device_;  // where it came from
  std::map<Key, Moving> fetched_;
  std::vector<at::Tensor> spare_;      // pinned, of what was taken
};

}  // namespace lockstep::engine
