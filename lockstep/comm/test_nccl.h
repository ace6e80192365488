// NCCL on the CPU, for tests: a call on "the device" is a call of a shared-memory communicator.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/comm/nccl_world.h"
#include "support/memory_store.h"
#include "support/run_ranks.h"

namespace lockstep::comm {

// Which tensors are on the device: those with an even number of elements. A rank can be made to meet an error.
struct FakeDevice {
  World* shared = nullptr;
  std::shared_ptr<Store> store;
  std::atomic<int> gpus = 8;
  std::atomic<bool> fails = false;
  bool peer_lost = false;
  // wait() returns before the call is done, as on a GPU; else it waits, so that tests can look at the result.
  std::atomic<bool> orders_only = false;
  // Called where a group is aborted: from here on its calls look done on the device. Set before any call.
  std::function<void()> aborting = [] {};
};

// What is in the store once this rank has aborted a group.
inline std::string aborted_key(int rank) { return "fake aborted/" + std::to_string(rank); }

class FakeTicket : public NcclTicket {
 public:
  FakeTicket(FakeDevice& device, Work work) : device_(device), work_(std::move(work)) {}
  void mark() override { marked_ = true; }
  bool reached() const override { return true; }
  // A call that a peer's abort cut short never ends on a device.
  bool done() const override {
    if (!marked_ || !work_.done()) return false;
    try {
      Work(work_).wait();
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }
  void order_after() const override {
    if (!device_.orders_only) Work(work_).wait();
  }

 private:
  FakeDevice& device_;
  Work work_;
  std::atomic<bool> marked_ = false;
};

class FakeGroup : public NcclGroup {
 public:
  FakeGroup(FakeDevice& device, const std::string& id, int rank, int size) : device_(device) {
    device.store->set(id + "/fake/" + std::to_string(rank), std::to_string(device.shared->rank()));
    for (int member = 0; member < size; ++member)
      ranks_.push_back(std::stoi(device.store->get(id + "/fake/" + std::to_string(member), std::chrono::seconds(10))));
    group_ = device.shared->communicator(ranks_, id);
  }
  bool ready() override {
    if (device_.fails) throw NcclFailure("ncclAllReduce: the fake failed (as told)", device_.peer_lost);
    return ++looks_ % 3 == 0;  // "in progress" at first
  }
  std::unique_ptr<NcclTicket> launch(const NativeCall& call) override {
    return std::make_unique<FakeTicket>(device_, work(call));
  }
  void close() override {}
  void abort() override {
    device_.aborting();
    device_.store->set(aborted_key(device_.shared->rank()), "");
    device_.shared->abort("ncclCommAbort");
  }

 private:
  Work work(const NativeCall& call) {
    using program::Collective;
    const CallOptions options{.id = program::named_call("fake"), .algorithm = {}, .op = call.op};
    switch (call.collective) {
      case Collective::kAllReduce:
        return group_->all_reduce(call.output, options);
      case Collective::kReduce:
        return group_->reduce(call.output, call.root, options);
      case Collective::kBroadcast:
        return group_->broadcast(call.output, call.root, options);
      case Collective::kAllGather:
        return group_->all_gather(call.input, call.output, options);
      case Collective::kReduceScatter:
        return group_->reduce_scatter(call.input, call.output, options);
      case Collective::kAllToAll:
        if (call.parts.sent.empty()) return group_->all_to_all(call.input, call.output, options);
        return group_->all_to_all_v(call.input.view({-1}), call.output.view({-1}), call.parts.sent, call.parts.received, options);
      case Collective::kShift:
        return group_->shift(call.input, call.output, options);
      case Collective::kShiftBack:
        return group_->shift_back(call.input, call.output, options);
      case Collective::kGather:
        return group_->gather(call.input, call.output, call.root, options);
      case Collective::kScatter:
        return group_->scatter(call.input, call.output, call.root, options);
      case Collective::kSend:
        return group_->send(call.input, call.root, options);
      case Collective::kRecv:
        return group_->recv(call.output, call.root, options);
      case Collective::kBarrier:
        break;
    }
    throw NcclFailure("no such call", false);
  }

  FakeDevice& device_;
  std::vector<int> ranks_;
  std::unique_ptr<Communicator> group_;
  std::atomic<int> looks_ = 0;
};

class FakeNccl : public NcclApi {
 public:
  explicit FakeNccl(FakeDevice& device) : device_(device) {}
  std::string version() const override { return "fake"; }
  int devices() const override { return device_.gpus; }
  void use_device(int) override {}
  bool takes(const at::Tensor& tensor) const override { return tensor.numel() % 2 == 0; }
  std::string unique_id() override {
    return "id" + std::to_string(device_.shared->rank()) + "." + std::to_string(drawn_++);
  }
  std::unique_ptr<NcclGroup> begin_group(const std::string& id, int rank, int size) override {
    return std::make_unique<FakeGroup>(device_, id, rank, size);
  }

 private:
  FakeDevice& device_;
  int drawn_ = 0;
};

// n ranks as threads, each with a world of backend nccl over a fake. What leaves `body` ends the other ranks.
template <typename Device = FakeDevice, typename Api = FakeNccl>
void run_nccl_ranks(int n, std::chrono::milliseconds deadline,
                    const std::type_identity_t<std::function<void(World&, Device&)>>& body) {
  const auto store = std::make_shared<testing::MemoryStore>();
  testing::run_ranks(n, [&](World& shared) {
    Device device;
    device.shared = &shared;
    device.store = store;
    const auto world = join_nccl(shared.rank(), n, store,
                                 {.deadline = deadline, .local_rank = shared.rank(), .address = "127.0.0.1", .token = "secret"},
                                 std::make_unique<Api>(device));
    try {
      body(*world, device);
    } catch (const std::exception& error) {
      world->abort(error.what());
      throw;
    }
  });
}

}  // namespace lockstep::comm
