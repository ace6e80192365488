#include "lockstep/checkpoint/agree.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::checkpoint {
namespace {

constexpr size_t kMaxText = 2048;  // bytes of a message that travel

at::Tensor number_tensor(int64_t number) {
  return at::full({1}, number, at::TensorOptions().dtype(at::kLong));
}

}  // namespace

std::string broadcast_text(comm::Communicator& world, const program::CallId& id, int root, const std::string& text) {
  const at::Tensor buffer =
      at::zeros({static_cast<int64_t>(kMaxText / sizeof(int64_t))}, at::TensorOptions().dtype(at::kLong));
  auto* bytes = static_cast<char*>(buffer.mutable_data_ptr());
  std::memcpy(bytes, text.data(), std::min(text.size(), kMaxText - 1));
  world.broadcast(buffer, root, {.id = id}).wait();
  return bytes;
}

std::string agree(comm::Communicator& world, const program::CallId& id, const std::function<void()>& work) {
  std::string problem;
  bool failed = false;
  try {
    work();
  } catch (const Error& error) {
    failed = true;
    problem = error.message().what;
    if (!error.message().where.empty()) problem = error.message().where + ": " + problem;
  } catch (const std::exception& error) {
    failed = true;
    problem = error.what();
  }
  // The largest number wins: the lowest rank that failed.
  const at::Tensor flag = number_tensor(failed ? world.size() - world.rank() : 0);
  world.all_reduce(flag, {.id = id, .op = comm::ReduceOp::kMax}).wait();
  const int64_t winner = flag.const_data_ptr<int64_t>()[0];
  if (winner == 0) return "";
  const int root = world.size() - static_cast<int>(winner);
  return cat("rank ", root, ": ", broadcast_text(world, id, root, problem));
}

int64_t broadcast_number(comm::Communicator& world, const program::CallId& id, int64_t number) {
  const at::Tensor value = number_tensor(number);
  world.broadcast(value, 0, {.id = id}).wait();
  return value.const_data_ptr<int64_t>()[0];
}

}  // namespace lockstep::checkpoint
