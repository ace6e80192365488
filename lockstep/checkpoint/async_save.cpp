#include "lockstep/checkpoint/async_save.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <chrono>

#include "lockstep/checkpoint/shard_writer.h"

namespace lockstep::checkpoint {
namespace {

// Of a tensor's place in the buffer: each begins on a cache line of its own.
size_t aligned(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

}  // namespace

Saver::Saver(SaverOptions options) : options_(std::move(options)) {}

Saver::~Saver() {
  if (in_flight_.valid()) in_flight_.wait();
}

std::optional<SaveResult> Saver::start(std::span<const engine::StateTensor> state, const TrainState& train_state) {
  std::optional<SaveResult> before = wait();
  stage(state);
  train_state_ = train_state;
  in_flight_ = std::async(std::launch::async, [this] {
    return save({.directory = options_.directory,
                 .state = staged_,
                 .train_state = train_state_,
                 .world = *options_.world,
                 .keep = options_.keep});
  });
  return before;
}

// Not in LibTorch's memory: it would count as memory of the step, and be taken anew for each save.
void Saver::stage(std::span<const engine::StateTensor> state) {
  staged_ = own_share(state);
  size_t bytes = 0;
  for (const engine::StateTensor& part : staged_) bytes += aligned(part.local.nbytes());
  if (bytes > capacity_) {
    buffer_.reset();
    buffer_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    capacity_ = bytes;
  }
  std::byte* next = buffer_.get();
  for (engine::StateTensor& part : staged_) {
    const at::Tensor copy =
        at::from_blob(next, part.local.sizes(), at::TensorOptions().dtype(part.local.scalar_type()));
    copy.copy_(part.local);
    next += aligned(part.local.nbytes());
    part.local = copy;
  }
}

std::optional<SaveResult> Saver::poll(comm::Communicator& training) {
  if (!in_flight_.valid()) return std::nullopt;
  const bool running = in_flight_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  const at::Tensor any_running = at::full({1}, running ? 1 : 0, at::TensorOptions().dtype(at::kLong));
  training
      .all_reduce(any_running, {.site = "checkpoint in flight",
                                .algorithm = program::Algorithm::kDirect,
                                .op = comm::ReduceOp::kMax})
      .wait();
  if (any_running.const_data_ptr<int64_t>()[0] != 0) return std::nullopt;
  return wait();
}

std::optional<SaveResult> Saver::wait() {
  if (!in_flight_.valid()) return std::nullopt;
  return in_flight_.get();
}

}  // namespace lockstep::checkpoint
