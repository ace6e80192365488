#include "lockstep/comm/stager.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace lockstep::comm {
namespace {

class StreamCopies : public StagedCall {
 public:
  StreamCopies(c10::Stream callers, c10::Stream stream) : stream_(stream), asked_(stream.device_type()) {
    asked_.record(callers);
  }

  at::Tensor fetch(const at::Tensor& tensor) override {
    const c10::StreamGuard on(stream_);
    at::Tensor host = page_locked(tensor);
    copy(tensor, host);
    return host;
  }
  at::Tensor room(const at::Tensor& tensor) override {
    const c10::StreamGuard on(stream_);
    return page_locked(tensor);
  }
  void store(const at::Tensor& host, const at::Tensor& tensor) override {
    const c10::StreamGuard on(stream_);
    copy(host, tensor);
  }

 private:
  static at::Tensor page_locked(const at::Tensor& tensor) {
    return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  }
  // Until the copy is done: the memory of both may then go to anybody, on whatever stream.
  void copy(const at::Tensor& from, const at::Tensor& to) {
    asked_.block(stream_);
    to.copy_(from, /*non_blocking=*/true);
    c10::Event done(stream_.device_type());
    done.record(stream_);
    done.synchronize();
  }

  c10::Stream stream_;
  c10::Event asked_;
};

class DeviceStager : public Stager {
 public:
  bool stages(const at::Tensor& tensor) const override { return !tensor.is_cpu(); }
  std::shared_ptr<StagedCall> begin(const at::Tensor& tensor) override {
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    if (!stream_ || stream_->device() != tensor.device()) stream_ = device.getStreamFromGlobalPool(tensor.device());
    return std::make_shared<StreamCopies>(device.getStream(tensor.device()), *stream_);
  }

 private:
  std::optional<c10::Stream> stream_;
};

}  // namespace

std::shared_ptr<Stager> make_stager() { return std::make_shared<DeviceStager>(); }

}  // namespace lockstep::comm
