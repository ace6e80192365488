// Times collectives between ranks that are processes of this host, and what memory allows for the same tensors:
//   bench_collectives RANKS BYTES... [--seconds S] [--collective C] [--algorithm A] [--queued]
// C: all_reduce, all_gather, reduce_scatter, or grid: all_reduce in the rows and the columns of a grid in turn, two
// communicators. A: ring, direct, exchange, or prompt, which is direct or, for a small all_reduce, exchange. --queued: by
// the communicator's thread, as calls that overlap with computation are made. BYTES are those of the full tensor.
// One line of JSON on standard output: for each size the seconds of a call (median of blocks), of a pass over the tensor
// in place, and of a copy of it, the two made by all ranks at once.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/launch/identity.h"
#include "lockstep/launch/local_launcher.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kBlocks = 7;
constexpr std::array kCollectives = {"all_reduce", "all_gather", "reduce_scatter", "grid"};
constexpr std::array kAlgorithms = {"ring", "direct", "exchange", "prompt"};

struct Options {
  int ranks = 2;
  std::vector<int64_t> sizes;  // bytes
  double seconds = 1;          // of all blocks of one measurement, about
  std::string collective = "all_reduce";
  std::string algorithm = "prompt";
  bool queued = false;
};

Options read_options(const std::vector<std::string>& arguments) {
  Options options;
  std::vector<std::string> numbers;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--seconds" && i + 1 < arguments.size())
      options.seconds = std::atof(arguments[++i].c_str());
    else if (arguments[i] == "--collective" && i + 1 < arguments.size())
      options.collective = arguments[++i];
    else if (arguments[i] == "--algorithm" && i + 1 < arguments.size())
      options.algorithm = arguments[++i];
    else if (arguments[i] == "--queued")
      options.queued = true;
    else
      numbers.push_back(arguments[i]);
  }
  if (!numbers.empty()) options.ranks = std::atoi(numbers[0].c_str());
  for (size_t i = 1; i < numbers.size(); ++i) options.sizes.push_back(std::atoll(numbers[i].c_str()));
  const bool grid = options.collective == "grid";
  const bool sound = options.ranks >= 2 && (!grid || options.ranks == 4) &&
                     std::ranges::count(kCollectives, options.collective) == 1 &&
                     std::ranges::count(kAlgorithms, options.algorithm) == 1 && !options.sizes.empty() && options.seconds > 0 &&
                     std::ranges::all_of(options.sizes, [&](int64_t bytes) { return bytes > 0 && bytes % (4 * options.ranks) == 0; });
  if (!sound)
    throw ConfigError({.code = "LS1004",
                       .what = cat("bench_collectives ", join(arguments, " ")),
                       .way_out = "see the head of bench/collectives.cpp; 2 ranks or more (a grid: 4), whole elements for each"});
  return options;
}

class Bench {
 public:
  Bench(comm::World& world, const Options& options) : options_(options) {
    const auto group = [&](std::vector<int> ranks, const char* axis) {
      groups_.push_back(world.communicator(ranks, axis));
    };
    std::vector<int> all(static_cast<size_t>(world.size()));
    std::iota(all.begin(), all.end(), 0);
    group(all, "world");
    if (options.collective != "grid") return;
    group({world.rank() / 2 * 2, world.rank() / 2 * 2 + 1}, "rows");
    group({world.rank() % 2, world.rank() % 2 + 2}, "columns");
  }

  Json row(int64_t bytes) {
    check_sum(bytes / 4);
    const at::Tensor tensor = at::full({bytes / 4}, 0.0, at::kFloat);
    const at::Tensor other = at::empty_like(tensor);
    auto* data = tensor.mutable_data_ptr<float>();
    const int64_t count = tensor.numel();
    return {{"bytes", bytes},
            {"seconds", median_seconds([&] { call(tensor); })},
            {"pass", median_seconds([&] { scale(data, count); })},
            {"copy", median_seconds([&] { std::memcpy(other.mutable_data_ptr(), data, static_cast<size_t>(bytes)); })}};
  }

 private:
  comm::Communicator& everyone() { return *groups_[0]; }
  comm::CallOptions how(const char* site, int64_t bytes, int ranks) const {
    program::Algorithm algorithm = program::Algorithm::kDirect;
    if (options_.algorithm == "ring") algorithm = program::Algorithm::kRing;
    if (options_.algorithm == "exchange") algorithm = program::Algorithm::kExchange;
    if (options_.algorithm == "prompt" && (options_.collective == "all_reduce" || options_.collective == "grid"))
      algorithm = program::prompt_all_reduce(bytes, ranks);
    return {.id = program::named_call(site), .algorithm = algorithm, .blocking = !options_.queued};
  }
  void call(const at::Tensor& tensor) {
    comm::Communicator& group = *groups_[options_.collective == "grid" ? 1 + turn_++ % 2 : 0];
    const comm::CallOptions call = how("bench", static_cast<int64_t>(tensor.nbytes()), group.size());
    const int64_t part = tensor.numel() / group.size();
    const at::Tensor own = tensor.narrow(0, group.rank() * part, part);
    if (options_.collective == "all_gather") return group.all_gather(own, tensor, call).wait();
    if (options_.collective == "reduce_scatter") return group.reduce_scatter(tensor, own, call).wait();
    group.all_reduce(tensor, call).wait();
  }

  void check_sum(int64_t count) {
    comm::Communicator& group = everyone();
    const at::Tensor tensor = at::full({count}, group.rank() + 1.0, at::kFloat);
    group.all_reduce(tensor, {.id = program::named_call("check")}).wait();
    const auto expected = static_cast<float>(group.size() * (group.size() + 1) / 2);
    const auto* sums = tensor.const_data_ptr<float>();
    if (!std::all_of(sums, sums + count, [&](float sum) { return sum == expected; })) throw InternalError("wrong sum");
  }

  // Every byte is read and written once; the factor keeps the compiler from leaving it out.
  void scale(float* data, int64_t count) {
    const float factor = factor_;
    for (int64_t i = 0; i < count; ++i) data[i] *= factor;
  }

  // Of one call that all ranks make at once; how many fill a block is rank 0's word.
  double median_seconds(const std::function<void()>& call) {
    const double first = std::min({block(call, 1), block(call, 1), block(call, 1)});
    const at::Tensor count = at::full({1}, std::max(1.0, options_.seconds / kBlocks / std::max(first, 1e-7)), at::kLong);
    everyone().broadcast(count, 0, {.id = program::named_call("count")}).wait();
    std::vector<double> seconds(kBlocks);
    for (double& taken : seconds) taken = block(call, count.const_data_ptr<int64_t>()[0]);
    std::ranges::nth_element(seconds, seconds.begin() + kBlocks / 2);
    return seconds[kBlocks / 2];
  }

  double block(const std::function<void()>& call, int64_t count) {
    everyone().barrier({.id = program::named_call("block")}).wait();
    const auto begin = Clock::now();
    for (int64_t i = 0; i < count; ++i) call();
    everyone().barrier({.id = program::named_call("block")}).wait();  // until all are done: they may have to share cores
    return std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(count);
  }

  const Options& options_;
  std::vector<std::unique_ptr<comm::Communicator>> groups_;  // all ranks; of a grid also this rank's row and column
  size_t turn_ = 0;
  volatile float factor_ = 1.0F;
};

int run_rank(std::vector<std::string> arguments) {
  const launch::Identity me = launch::take_identity(arguments);
  const Options options = read_options(arguments);
  at::set_num_threads(1);
  const auto region = std::make_shared<const launch::SharedRegion>(launch::SharedRegion::from_descriptor(me.region_fd));
  comm::SharedMemoryWorld world(region, me.rank, me.world_size);
  Bench bench(world, options);
  Json rows = Json::array();
  for (int64_t bytes : options.sizes) rows.push_back(bench.row(bytes));
  if (me.rank == 0) std::puts(Json{{"ranks", me.world_size}, {"sizes", rows}}.dump().c_str());
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  try {
    if (std::ranges::find(arguments, "--rank") != arguments.end()) return run_rank(arguments);
    return launch::launch_local({.ranks = read_options(arguments).ranks, .arguments = arguments});
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}

}  // namespace
}  // namespace lockstep

int main(int count, char** values) { return lockstep::run({values + 1, values + count}); }
