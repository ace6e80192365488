// NCCL on the CPU whose calls stop half-way and are aborted, for tests of what becomes of their results.
#pragma once

#include <thread>

#include "lockstep/comm/job_board.h"
#include "lockstep/comm/test_nccl.h"

namespace lockstep::comm {

// While it halts, calls of one kind are put on "the device" and move nothing. As on a GPU, Work::wait() lets the caller go on
// behind them; when he has come past the last of them NCCL fails, the watch gives up, and the calls look done. Ranks go on
// to talk over the host.
struct HaltingDevice : FakeDevice {
  program::Collective halted = program::Collective::kAllReduce;
  std::atomic<bool> halts = false;
  std::atomic<int> launched = 0, passed = 0;  // halted calls
  std::atomic<bool> aborted = false;

  // Before he sees a result on the host, which he does not before the abort.
  void fail() {
    fails = true;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!JobBoard(store, shared->rank()).given_up() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

class HaltedTicket : public NcclTicket {
 public:
  explicit HaltedTicket(HaltingDevice& device) : device_(device) {}
  void mark() override {}
  bool reached() const override { return true; }
  bool done() const override { return device_.aborted; }
  void order_after() const override {
    if (++device_.passed == device_.launched) device_.fail();
  }

 private:
  HaltingDevice& device_;
};

class HaltingGroup : public FakeGroup {
 public:
  HaltingGroup(HaltingDevice& device, const std::string& id, int rank, int size)
      : FakeGroup(device, id, rank, size), device_(device) {}
  std::unique_ptr<NcclTicket> launch(const NativeCall& call) override {
    if (!device_.halts || call.collective != device_.halted) return FakeGroup::launch(call);
    ++device_.launched;
    return std::make_unique<HaltedTicket>(device_);
  }
  void abort() override { device_.aborted = true; }

 private:
  HaltingDevice& device_;
};

class HaltingNccl : public FakeNccl {
 public:
  explicit HaltingNccl(HaltingDevice& device) : FakeNccl(device), device_(device) {}
  std::unique_ptr<NcclGroup> begin_group(const std::string& id, int rank, int size) override {
    return std::make_unique<HaltingGroup>(device_, id, rank, size);
  }

 private:
  HaltingDevice& device_;
};

inline void run_halting_ranks(int n, const std::function<void(World&, HaltingDevice&)>& body) {
  run_nccl_ranks<HaltingDevice, HaltingNccl>(n, std::chrono::seconds(20), body);
}

}  // namespace lockstep::comm
