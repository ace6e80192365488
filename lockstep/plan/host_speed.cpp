#include "lockstep/plan/host_speed.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "lockstep/launch/host_memory.h"

namespace lockstep::plan {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

using Vector16 = float __attribute__((vector_size(16)));
using Vector32 = float __attribute__((vector_size(32)));
using Vector64 = float __attribute__((vector_size(64)));

// Independent sums hide the latency of a multiply-add (4 cycles, 2 begin in each) and stay in 16 registers, by whatever options this is compiled.
constexpr int kSums = 10;

template <typename Vector>
[[gnu::always_inline]] inline float multiply_add(int64_t rounds, float factor) {
  const Vector by = Vector{} + factor;
  // Each begins elsewhere, or the compiler makes one of them.
  Vector a = by, b = a + by, c = b + by, d = c + by, e = d + by, f = e + by, g = f + by, h = g + by, i = h + by, j = i + by;
  for (int64_t round = 0; round < rounds; ++round) {
    a = a * by + by;
    b = b * by + by;
    c = c * by + by;
    d = d * by + by;
    e = e * by + by;
    f = f * by + by;
    g = g * by + by;
    h = h * by + by;
    i = i * by + by;
    j = j * by + by;
  }
  const Vector sum = a + b + c + d + e + f + g + h + i + j;
  return sum[0];
}

struct Kernel {
  float (*run)(int64_t rounds, float factor) = nullptr;
  double flops = 0;  // of a round
};
constexpr double flops_of(size_t bytes) { return 2.0 * kSums * static_cast<double>(bytes / sizeof(float)); }

float multiply_add_16(int64_t rounds, float factor) { return multiply_add<Vector16>(rounds, factor); }
#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] float multiply_add_32(int64_t rounds, float factor) { return multiply_add<Vector32>(rounds, factor); }
[[gnu::target("avx512f")]] float multiply_add_64(int64_t rounds, float factor) { return multiply_add<Vector64>(rounds, factor); }
#endif

// The widest that this core has.
Kernel widest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {multiply_add_64, flops_of(64)};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {multiply_add_32, flops_of(32)};
#endif
  return {multiply_add_16, flops_of(16)};
}

// What `rate` says, on each core at once: the sum. `rate` is given the core.
double on_all(int cores, const std::function<double(int)>& rate) {
  std::vector<double> rates(static_cast<size_t>(cores));
  std::vector<std::thread> threads;
  std::atomic<int> ready = 0;
  for (int core = 0; core < cores; ++core)
    threads.emplace_back([&, core] {
      ++ready;
      while (ready < cores) std::this_thread::yield();
      rates[static_cast<size_t>(core)] = rate(core);
    });
  double sum = 0;
  for (std::thread& thread : threads) thread.join();
  for (const double one : rates) sum += one;
  return sum;
}

// The most that `work` does a second for each `amount`, of many short times: in most of them nobody else has the core.
template <typename Work>
double best_rate(double seconds, double amount, const Work& work) {
  double best = 0;
  for (const auto start = Clock::now(); best == 0 || since(start) < seconds;) {
    const auto begin = Clock::now();
    work();
    best = std::max(best, amount / since(begin));
  }
  return best;
}

double flops_of_core(double seconds) {
  const Kernel kernel = widest();
  constexpr int64_t kRounds = 200'000;
  volatile float factor = 0.5F, sink = 0;
  sink = kernel.run(kRounds, factor);
  return best_rate(seconds, kernel.flops * static_cast<double>(kRounds), [&] { sink = sink + kernel.run(kRounds, factor); });
}

double copies_of_core(double seconds) {
  constexpr size_t kNumbers = size_t{8} << 20;  // 32 MiB
  std::vector<float> from(kNumbers, 1), to(kNumbers);
  float value = 0;
  const double rate = best_rate(seconds, 2.0 * kNumbers * sizeof(float), [&] {
    from[0] = ++value;  // no copy is like the one before
    std::copy(from.begin(), from.end(), to.begin());
  });
  volatile float sink = to[kNumbers / 2];
  static_cast<void>(sink);
  return rate;
}

// Half of the way there and back.
double latency_between_cores() {
  constexpr int kRounds = 2000;
  std::atomic<int> ball = 0;
  const auto play = [&](int turn) {
    for (int i = turn; i < 2 * kRounds; i += 2) {
      while (ball.load(std::memory_order_acquire) != i) std::this_thread::yield();
      ball.store(i + 1, std::memory_order_release);
    }
  };
  std::thread other([&] { play(1); });
  const auto start = Clock::now();
  play(0);
  other.join();
  return since(start) / (2 * kRounds);
}

}  // namespace

HostSpeed measure_host(int cores, double seconds) {
  return {.flops = on_all(cores, [&](int) { return flops_of_core(seconds); }) / cores,
          .memory = on_all(cores, [&](int) { return copies_of_core(seconds); }),
          .memory_of_core = copies_of_core(seconds),
          .latency = latency_between_cores()};
}

HostFacts host_facts(const std::filesystem::path& root) {
  HostFacts facts{.processor = "CPU", .cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))};
  std::ifstream file(root / "proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (!line.starts_with("model name") || colon == std::string::npos) continue;
    facts.processor = line.substr(colon + 2);
    break;
  }
  if (const auto memory = launch::host_memory(root)) facts.memory = static_cast<double>(memory->available);
  return facts;
}

}  // namespace lockstep::plan
