// Backend "shared_memory": the ranks of one host, as threads of one process or as processes that inherit a region.
// From each member of a group to each other leads a ring of bytes with one writer and one reader; a large message
// streams through it in pieces, and a sum reads them where they lie. A rank that must wait spins for about a
// microsecond and then sleeps in the kernel (futex) until a peer rings its bell, looking around every 50 ms: a peer
// that died, closed the group or aborted the job is noticed within a tenth of a second, and no wait passes its
// deadline.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/launch/shared_region.h"

namespace lockstep::comm {

struct SharedMemoryOptions {
  std::chrono::milliseconds deadline{60000};  // of every wait for a peer
  // Sees each call of this rank when it is entered and when it is left, after the peers can. A seam for tests, which break
  // a rank there; called on the thread that makes the call.
  std::function<void(const Progress&)> watch{};
  std::shared_ptr<Stager> stager{};  // of its communicators; null: one for each (make_stager)
};

// Destroy its communicators before it. A world that ends tells its peers that this rank has left.
class SharedMemoryWorld : public World {
 public:
  // All ranks give the same size and regions that map the same memory. ConfigError LS3005 where they do not agree.
  SharedMemoryWorld(std::shared_ptr<const launch::SharedRegion> region, int rank, int size,
                    SharedMemoryOptions options = {});
  ~SharedMemoryWorld() override;
  SharedMemoryWorld(const SharedMemoryWorld&) = delete;
  SharedMemoryWorld& operator=(const SharedMemoryWorld&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  // Does not wait for the others. EnvironmentError LS3006 where the region has no room for the rings of another group.
  std::unique_ptr<Communicator> communicator(const std::vector<int>& ranks, const std::string& axis) override;
  void abort(const std::string& reason) override;
  std::string backend() const override { return "shared_memory"; }

 private:
  std::shared_ptr<const launch::SharedRegion> region_;
  int rank_;
  int size_;
  SharedMemoryOptions options_;
  std::map<std::string, int> made_;  // groups made of the same ranks and axis: tells the second from the first
};

}  // namespace lockstep::comm
