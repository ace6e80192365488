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
  Copy fetch(Key key);
  // What was fetched, once the stream is behind the copy.
  at::Tensor take(Key key);
  bool fetched(Key key) const;
  void clear();

 private:
  struct Input {
    at::Tensor host;
    c10::Device home;      // where it came from
    at::Tensor back{};     // there again; undefined before fetch()
  };
  void settle();
  at::Tensor host_memory(const at::Tensor& like);

  CopyQueue& copies_;
  std::shared_ptr<MemoryAccount> memory_;
  at::Tensor leaving_;             // the last that was evicted: on the device until it has been copied
  Copy copying_out_;
  std::map<Key, Input> inputs_;
  std::vector<at::Tensor> spare_;  // pinned, of what was taken
};

}  // namespace lockstep::engine
