#include "machine.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>

#include "cuda_runtime.h"

namespace lockstep::emulation {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kMostThreads = 1024;

std::string text(const uint3& place) {
  return "(" + std::to_string(place.x) + ", " + std::to_string(place.y) + ", " + std::to_string(place.z) + ")";
}

std::string text(const std::source_location& where) {
  const std::string file = where.file_name();
  return file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(where.line());
}

bool same(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

std::string name_of(const Thread& thread) { return "block " + text(blockIdx) + ", thread " + text(thread.index); }

std::string what_it_does(const Thread* thread) {
  if (!thread) return "which the block does not have";
  if (thread->state == State::kEnded) return "which has ended";
  return (thread->state == State::kAtBarrier ? "which waits at the barrier " : "which waits in the shuffle ") +
         text(thread->where);
}

bool named(unsigned mask, int lane) { return mask >> lane & 1u; }

uint3 place_of(uint64_t number, const dim3& size) {
  return {static_cast<unsigned>(number % size.x), static_cast<unsigned>(number / size.x % size.y),
          static_cast<unsigned>(number / size.x / size.y)};
}

// As CUDA refuses them.
void check_shape(const cudaLaunchConfig_t& grid) {
  const dim3 &blocks = grid.gridDim, &threads = grid.blockDim;
  const uint64_t in_block = uint64_t{threads.x} * threads.y * threads.z;
  const bool blocks_fit = blocks.x >= 1 && blocks.y >= 1 && blocks.z >= 1 && blocks.x <= 0x7fffffffu &&
                          blocks.y <= 65535 && blocks.z <= 65535;
  if (blocks_fit && in_block >= 1 && in_block <= kMostThreads && threads.z <= 64) return;
  throw Found(cudaErrorInvalidConfiguration, "a grid of " + text(uint3{blocks.x, blocks.y, blocks.z}) + " blocks of " +
                                                 text(uint3{threads.x, threads.y, threads.z}) + " threads");
}

void poison(const Guarded& memory) { std::memset(memory.data(), 0xff, memory.size()); }

}  // namespace

void* SharedMemory::of(const Shared& array) {
  std::unique_ptr<Guarded>& memory = arrays_[{&array, at_end_}];
  if (!memory) {
    const Guarded::Side side = at_end_ ? Guarded::kBehind : Guarded::kBefore;
    memory = std::make_unique<Guarded>(array.name(), array.size(), Guarded::Options{.side = side});
    poison(*memory);
  }
  return memory->data();
}

void SharedMemory::next_block() {
  at_end_ = !at_end_;
  for (const auto& [key, memory] : arrays_)
    if (key.second == at_end_) poison(*memory);
}

void Machine::put_in_order(std::vector<uint32_t>& numbers) const {
  std::iota(numbers.begin(), numbers.end(), 0u);
  if (order_.kind == Order::kDescending) std::reverse(numbers.begin(), numbers.end());
  if (order_.kind != Order::kShuffled) return;
  std::minstd_rand random(static_cast<uint32_t>(order_.seed * 1000003 + rounds_));
  for (size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[random() % i]);
}

void Machine::run(const cudaLaunchConfig_t& grid, const std::function<void()>& kernel) {
  check_shape(grid);
  kernel_ = &kernel;
  gridDim = grid.gridDim;
  blockDim = grid.blockDim;
  threads_.assign(size_t{blockDim.x} * blockDim.y * blockDim.z, Thread{});
  for (size_t i = 0; i < threads_.size(); ++i) threads_[i].index = place_of(i, blockDim);
  rounds_ = 0;
  std::vector<uint32_t> blocks(size_t{gridDim.x} * gridDim.y * gridDim.z);
  put_in_order(blocks);
  for (const uint32_t block : blocks) {
    blockIdx = place_of(block, gridDim);
    run_block();
  }
}

void Machine::run_block() {
  shared_.next_block();
  for (Thread& thread : threads_) thread.state = State::kReady;
  for (;;) {
    order_.warps_ahead ? run_warps() : run_ready(0, threads_.size());
    if (std::ranges::all_of(threads_, [](const Thread& thread) { return thread.state == State::kEnded; })) return;
    if (deliver_shuffles(0, threads_.size())) continue;
    explain_shuffles();
    release_barrier();
  }
}

void Machine::run_warps() {
  std::vector<uint32_t> warps((threads_.size() + kWarp - 1) / kWarp);
  put_in_order(warps);
  for (const size_t warp : warps) {
    const size_t begin = warp * kWarp, end = std::min(begin + kWarp, threads_.size());
    do run_ready(begin, end);
    while (deliver_shuffles(begin, end));
  }
}

void Machine::run_ready(size_t begin, size_t end) {
  ++rounds_;
  turns_.resize(end - begin);
  put_in_order(turns_);
  for (uint32_t& turn : turns_) turn += static_cast<uint32_t>(begin);
  for (turn_ = 0; turn_ < turns_.size(); ++turn_) {
    current_ = turns_[turn_];
    if (current().state != State::kReady) continue;
    if (!current().fiber) current().fiber = fibers_.take();
    threadIdx = current().index;
    const std::optional<Fault> fault = fibers_.resume(current().fiber);
    if (!fault) continue;
    if (fault->trapped)
      throw Found(cudaErrorMisalignedAddress, name_of(current()) + " reads or writes at an address that is not aligned");
    const std::string whose = Guarded::whose(fault->address);
    throw Found(cudaErrorIllegalAddress, name_of(current()) + (fault->write ? " writes " : " reads ") +
                                             (whose.empty() ? "an address in no buffer" : whose));
  }
}

// On a fiber. The current thread from its beginning; behind it, on the same stack, those next in turn that have not begun
// either: threads that never wait cost no jump.
void Machine::run_threads() {
  for (;;) {
    Fibers::Fiber* const fiber = current().fiber;
    (*kernel_)();
    current().state = State::kEnded;
    current().fiber = nullptr;
    while (turn_ + 1 < turns_.size() && threads_[turns_[turn_ + 1]].state != State::kReady) ++turn_;
    if (turn_ + 1 == turns_.size() || threads_[turns_[turn_ + 1]].fiber) {
      fibers_.give_back(fiber);
      fibers_.suspend();
    } else {
      current_ = turns_[++turn_];
      current().fiber = fiber;
      threadIdx = current().index;
    }
  }
}

void Machine::wait(State state, const std::source_location& where) {
  current().state = state;
  current().where = where;
  fibers_.suspend();
}

void Machine::exchange(const ShuffleDown& call, void* value, size_t size) {
  current().shuffle = call;
  std::memcpy(current().offered.data(), value, size);
  wait(State::kAtShuffle, call.where);
  std::memcpy(value, current().received.data(), size);
}

// Null: the last warp is not full.
const Thread* Machine::in_warp_of(size_t thread, int lane) const {
  const size_t number = thread / kWarp * kWarp + static_cast<size_t>(lane);
  return number < threads_.size() ? &threads_[number] : nullptr;
}

// Whether `other` is in the shuffle of `thread`.
bool Machine::joins(const Thread* other, const Thread& thread) const {
  return other && other->state == State::kAtShuffle && other->shuffle.mask == thread.shuffle.mask &&
         same(other->where, thread.where);
}

// Whether any could be: then somebody can go on.
bool Machine::deliver_shuffles(size_t begin, size_t end) {
  bool any = false;
  for (size_t i = begin; i < end; ++i)
    if (threads_[i].state == State::kAtShuffle && deliver(i)) any = true;
  return any;
}

// The shuffle that this thread waits in, if all lanes of its mask have come to it.
bool Machine::deliver(size_t of) {
  const Thread call = threads_[of];
  const unsigned mask = call.shuffle.mask;
  if (!named(mask, static_cast<int>(of % kWarp))) return false;
  for (int lane = 0; lane < kWarp; ++lane)
    if (named(mask, lane) && !joins(in_warp_of(of, lane), call)) return false;
  for (int lane = 0; lane < kWarp; ++lane) {
    if (!named(mask, lane)) continue;
    Thread& thread = threads_[of / kWarp * kWarp + static_cast<size_t>(lane)];
    const int width = thread.shuffle.width;
    const int from = lane + static_cast<int>(thread.shuffle.delta);
    const int source = from < lane / width * width + width ? from : lane;
    if (!named(mask, source))
      throw Found(cudaErrorLaunchFailure, name_of(thread) + " reads lane " + std::to_string(source) +
                                              " in the shuffle " + text(thread.where) + ", whose mask does not name it");
    thread.received = in_warp_of(of, source)->offered;
    thread.state = State::kReady;
  }
  return true;
}

// Nobody can go on: of a thread that waits in a shuffle, why.
void Machine::explain_shuffles() const {
  const auto waits = std::ranges::find(threads_, State::kAtShuffle, &Thread::state);
  if (waits == threads_.end()) return;
  const Thread& thread = *waits;
  const auto of = static_cast<size_t>(waits - threads_.begin());
  const std::string who = name_of(thread) + " waits in the shuffle " + text(thread.where);
  if (!named(thread.shuffle.mask, static_cast<int>(of % kWarp)))
    throw Found(cudaErrorLaunchFailure, who + ", whose mask does not name it");
  for (int lane = 0; lane < kWarp; ++lane) {
    const Thread* other = in_warp_of(of, lane);
    if (named(thread.shuffle.mask, lane) && !joins(other, thread))
      throw Found(cudaErrorLaunchFailure, who + " for lane " + std::to_string(lane) + ", " + what_it_does(other));
  }
}

void Machine::release_barrier() {
  const auto waiting = std::ranges::find(threads_, State::kAtBarrier, &Thread::state);
  for (const Thread& thread : threads_)
    if (thread.state != State::kAtBarrier || !same(thread.where, waiting->where))
      throw Found(cudaErrorLaunchFailure, name_of(*waiting) + " waits at the barrier " + text(waiting->where) +
                                              " for thread " + text(thread.index) + ", " + what_it_does(&thread));
  for (Thread& thread : threads_) thread.state = State::kReady;
}

}  // namespace lockstep::emulation
