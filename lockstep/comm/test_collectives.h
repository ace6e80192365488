// Tests of every collective by every algorithm: values against closed formulas, bits against other ranks and runs, the
// recorded ledger against the prediction. Each test program that includes this runs them over one backend.
#pragma once

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/random.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/world.h"
#include "lockstep/mesh/placement.h"

namespace lockstep::comm {

// By the test program. Runs `body` on n ranks, of which this process may be one or hold them all.
void run_ranks(int n, const std::function<void(World&)>& body);
struct TensorsOfCalls {
  at::Device device = at::kCPU;
  int64_t largest = (1 << 20) + 1;  // elements; in some calls of each rank's part
};
TensorsOfCalls tensors_of_calls();

namespace {

using program::Algorithm;
using program::Collective;

constexpr std::array kAlgorithms = {Algorithm::kRing, Algorithm::kTree, Algorithm::kHalvingDoubling,
                                    Algorithm::kDirect, Algorithm::kExchange};
constexpr std::array kRanks = {1, 2, 3, 4, 5, 8};

std::vector<int> all_ranks(int n) {
  std::vector<int> ranks(static_cast<size_t>(n));
  for (int rank = 0; rank < n; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  return ranks;
}

// Element i of rank r: small whole numbers, so that sums are exact in every type but bf16 beyond 256.
double value(int rank, int64_t i) {
  return static_cast<double>((rank + 1) * ((i % 7) + 1));
}
double sum_of(int n, int64_t i) {
  return n * (n + 1) / 2.0 * static_cast<double>((i % 7) + 1);
}

template <typename T>
at::Tensor filled(int64_t numel, at::ScalarType type, const std::function<double(int64_t)>& element) {
  at::Tensor tensor = at::empty({numel}, type);
  T* data = static_cast<T*>(tensor.data_ptr());
  for (int64_t i = 0; i < numel; ++i) data[i] = static_cast<T>(element(i));
  return tensor.to(tensors_of_calls().device);
}
at::Tensor room(int64_t numel, at::ScalarType type = at::kFloat) {
  return at::empty({numel}, at::TensorOptions(type).device(tensors_of_calls().device));
}
at::Tensor floats(int64_t numel, const std::function<double(int64_t)>& element) {
  return filled<float>(numel, at::kFloat, element);
}

void expect(const at::Tensor& tensor, const std::function<double(int64_t)>& element, const std::string& what) {
  const at::Tensor host = tensor.cpu();
  const float* data = host.const_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i)
    if (data[i] != static_cast<float>(element(i))) {
      ADD_FAILURE() << what << ": element " << i << " is " << data[i] << ", not " << element(i);
      return;
    }
}

// The ledger of one call must be what program/ledger.h predicts for it.
void expect_ledger(Communicator& group, const program::CollectiveCall& call, const std::string& site) {
  program::Ledger predicted;
  if (group.size() > 1)
    predicted.add({.id = program::named_call(site), .collective = call.collective, .axis = "world", .algorithm = call.algorithm},
                  program::payload(call), program::predicted_sends(call, group.rank()));
  const std::vector<std::string> lines = program::Ledger::difference(predicted, group.take_ledger());
  EXPECT_TRUE(lines.empty()) << join(lines, "\n");
}

class Collectives : public ::testing::TestWithParam<int> {
 protected:
  // Runs `body(group, n, numel)` for every size on n ranks.
  template <typename Body>
  void for_sizes(const Body& body) {
    const int n = GetParam();
    run_ranks(n, [&](World& world) {
      const auto group = world.communicator(all_ranks(n), "world");
      for (const int64_t numel : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{1000}, tensors_of_calls().largest})
        body(*group, n, numel);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::ValuesIn(kRanks));

TEST_P(Collectives, AllReduce) {
  for_sizes([](Communicator& group, int n, int64_t numel) {
    for (const Algorithm algorithm : kAlgorithms) {
      const std::string site = cat(program::algorithm_name(algorithm), " ", numel);
      const at::Tensor tensor = floats(numel, [&](int64_t i) { return value(group.rank(), i); });
      group.all_reduce(tensor, {.id = program::named_call(site), .algorithm = algorithm, .blocking = numel % 2 == 0}).wait();
      expect(
          tensor, [&](int64_t i) { return sum_of(n, i); }, site);
      expect_ledger(
          group, {.collective = Collective::kAllReduce, .algorithm = algorithm, .group = all_ranks(n), .numel = numel},
          site);
    }
  });
}

TEST_P(Collectives, ReduceAndBroadcast) {
  for_sizes([](Communicator& group, int n, int64_t numel) {
    for (const Algorithm algorithm : {Algorithm::kTree, Algorithm::kDirect})
      for (const int root : {0, n - 1}) {
        const std::string site = cat(program::algorithm_name(algorithm), " ", numel, " root ", root);
        const at::Tensor tensor = floats(numel, [&](int64_t i) { return value(group.rank(), i); });
        group.reduce(tensor, root, {.id = program::named_call(site), .algorithm = algorithm}).wait();
        if (group.rank() == root)
          expect(
              tensor, [&](int64_t i) { return sum_of(n, i); }, site);
        expect_ledger(group,
                      {.collective = Collective::kReduce,
                       .algorithm = algorithm,
                       .group = all_ranks(n),
                       .numel = numel,
                       .root = root},
                      site);

        group.broadcast(tensor, root, {.id = program::named_call(site), .algorithm = algorithm}).wait();
        expect(
            tensor, [&](int64_t i) { return sum_of(n, i); }, site);
        expect_ledger(group,
                      {.collective = Collective::kBroadcast,
                       .algorithm = algorithm,
                       .group = all_ranks(n),
                       .numel = numel,
                       .root = root},
                      site);
      }
  });
}

TEST_P(Collectives, ReduceScatterAndAllGather) {
  for_sizes([](Communicator& group, int n, int64_t part) {
    const int64_t numel = part * n;
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect})
      for (const bool in_place : {false, true}) {
        const std::string site = cat(program::algorithm_name(algorithm), " ", numel, in_place ? " in place" : "");
        const auto own = [&](const at::Tensor& full) { return full.narrow(0, group.rank() * part, part); };
        const at::Tensor input = floats(numel, [&](int64_t i) { return value(group.rank(), i); });
        const at::Tensor sums = in_place ? own(input) : room(part);
        group.reduce_scatter(input, sums, {.id = program::named_call(site), .algorithm = algorithm}).wait();
        expect(
            sums, [&](int64_t i) { return sum_of(n, group.rank() * part + i); }, site);
        if (!in_place)
          expect(
              input, [&](int64_t i) { return value(group.rank(), i); }, site + ", input");
        expect_ledger(
            group,
            {.collective = Collective::kReduceScatter, .algorithm = algorithm, .group = all_ranks(n), .numel = numel},
            site);

        const at::Tensor output = in_place ? input : room(numel);
        group.all_gather(sums, output, {.id = program::named_call(site), .algorithm = algorithm}).wait();
        expect(
            output, [&](int64_t i) { return sum_of(n, i); }, site);
        expect_ledger(
            group,
            {.collective = Collective::kAllGather, .algorithm = algorithm, .group = all_ranks(n), .numel = numel},
            site);
      }
  });
}

TEST_P(Collectives, AllToAllGatherScatter) {
  for_sizes([](Communicator& group, int n, int64_t part) {
    const int64_t numel = part * n;
    const int r = group.rank();
    const std::string site = cat("part ", part);
    // Element i of what rank a has for rank b.
    const auto between = [](int a, int b, int64_t i) { return 1000.0 * a + 100.0 * b + static_cast<double>(i % 13); };
    const auto peer = [&](int64_t i) { return static_cast<int>(i / part); };
    const at::Tensor input = floats(numel, [&](int64_t i) { return between(r, peer(i), i % part); });
    const at::Tensor output = room(numel);
    group.all_to_all(input, output, {.id = program::named_call(site)}).wait();
    expect(
        output, [&](int64_t i) { return between(peer(i), r, i % part); }, site);
    expect_ledger(
        group,
        {.collective = Collective::kAllToAll, .algorithm = Algorithm::kDirect, .group = all_ranks(n), .numel = numel},
        site);

    const int root = n / 2;
    const at::Tensor own = room(part);
    group.scatter(r == root ? input : at::Tensor(), own, root, {.id = program::named_call(site)}).wait();
    expect(
        own, [&](int64_t i) { return between(root, r, i); }, site);
    expect_ledger(group,
                  {.collective = Collective::kScatter,
                   .algorithm = Algorithm::kDirect,
                   .group = all_ranks(n),
                   .numel = numel,
                   .root = root},
                  site);

    const at::Tensor back = r == root ? room(numel) : at::Tensor();
    group.gather(own, back, root, {.id = program::named_call(site)}).wait();
    if (r == root)
      expect(
          back, [&](int64_t i) { return between(root, peer(i), i % part); }, site);
    expect_ledger(group,
                  {.collective = Collective::kGather,
                   .algorithm = Algorithm::kDirect,
                   .group = all_ranks(n),
                   .numel = numel,
                   .root = root},
                  site);
  });
}

TEST_P(Collectives, Shift) {
  for_sizes([](Communicator& group, int n, int64_t numel) {
    at::Tensor tensor = floats(numel, [&](int64_t i) { return value(group.rank(), i); });
    for (int step = 1; step <= std::min(n, 2); ++step) {
      const std::string site = cat("shift ", numel, " step ", step);
      const at::Tensor came = room(numel);
      group.shift(tensor, came, {.id = program::named_call(site), .blocking = step % 2 == 0}).wait();
      expect(came, [&](int64_t i) { return value((group.rank() + n - step) % n, i); }, site);
      expect_ledger(group, {.collective = Collective::kShift, .algorithm = Algorithm::kDirect, .group = all_ranks(n), .numel = numel}, site);
      tensor = came;
    }
    const auto [site, came] = std::pair(cat("shift back ", numel), room(numel));
    group.shift_back(tensor, came, {.id = program::named_call(site)}).wait();
    expect(came, [&](int64_t i) { return value((group.rank() + 1 + n - std::min(n, 2)) % n, i); }, site);
    expect_ledger(group, {.collective = Collective::kShiftBack, .algorithm = Algorithm::kDirect, .group = all_ranks(n), .numel = numel}, site);
  });
}

TEST_P(Collectives, SendReceiveAndBarrier) {
  for_sizes([](Communicator& group, int n, int64_t numel) {
    const int r = group.rank();
    const std::string site = cat("size ", numel);
    if (n > 1 && r < 2) {  // both ways between two ranks, while the others do nothing
      const at::Tensor out = floats(numel, [&](int64_t i) { return value(r, i); });
      const at::Tensor in = room(numel);
      if (r == 0) {
        group.send(out, 1, {.id = program::named_call(site)});
        group.recv(in, 1, {.id = program::named_call(site)}).wait();
      } else {
        group.recv(in, 0, {.id = program::named_call(site)});
        group.send(out, 0, {.id = program::named_call(site)}).wait();
      }
      expect(
          in, [&](int64_t i) { return value(1 - r, i); }, site);
      program::CollectiveCall call{.collective = Collective::kSend,
                                   .algorithm = Algorithm::kDirect,
                                   .group = all_ranks(n),
                                   .numel = numel,
                                   .root = 1 - r};
      program::Ledger predicted;
      predicted.add({.id = program::named_call(site), .collective = Collective::kSend, .axis = "world", .algorithm = Algorithm::kDirect},
                    program::payload(call), program::predicted_sends(call, r));
      call.collective = Collective::kRecv;
      predicted.add({.id = program::named_call(site), .collective = Collective::kRecv, .axis = "world", .algorithm = Algorithm::kDirect},
                    program::payload(call), program::predicted_sends(call, r));
      EXPECT_EQ(predicted, group.take_ledger());
    }
    group.barrier({.id = program::named_call(site)}).wait();
    expect_ledger(group, {.collective = Collective::kBarrier, .algorithm = Algorithm::kDirect, .group = all_ranks(n)},
                  site);
  });
}

constexpr int64_t kNormals = 10007;

// Normal values of very different sizes, where the order of additions shows.
at::Tensor normals(int rank, at::ScalarType type) {
  at::Tensor tensor = at::empty({kNormals}, at::kFloat);
  const std::span<float> values(tensor.mutable_data_ptr<float>(), kNormals);
  RandomStream(1, cat("rank ", rank)).normal(0, values);
  for (int64_t i = 0; i < kNormals; ++i)
    values[static_cast<size_t>(i)] *= std::pow(10.0f, static_cast<float>((i + rank) % 9 - 4));
  return tensor.to(type);
}
at::Tensor normals_there(int rank, at::ScalarType type) { return normals(rank, type).to(tensors_of_calls().device); }

std::string bits_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu();
  return {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
}

// The bits of their sum, by rank, for the ranks of this process; checks that they are the same on all.
using RunRanks = std::function<void(int, const std::function<void(World&)>&)>;
std::vector<std::string> sums(const RunRanks& run, int n, Algorithm algorithm, at::ScalarType type) {
  std::vector<std::string> bits(static_cast<size_t>(n));
  run(n, [&](World& world) {
    const auto group = world.communicator(all_ranks(n), "world");
    const at::Tensor sum = normals_there(world.rank(), type);
    group->all_reduce(sum, {.id = program::named_call("bits"), .algorithm = algorithm}).wait();
    const at::Tensor everybodys = room(n * kNormals, type);
    group->all_gather(sum, everybodys, {.id = program::named_call("everybody's")}).wait();
    for (int rank = 0; rank < n; ++rank)
      EXPECT_EQ(bits_of(everybodys.narrow(0, rank * kNormals, kNormals)), bits_of(sum))
          << n << " " << program::algorithm_name(algorithm);
    bits[static_cast<size_t>(world.rank())] = bits_of(sum);
  });
  return bits;
}

TEST(Bits, AreTheSameOnEveryRankAndInEveryRun) {
  for (const int n : {2, 3, 5, 8})
    for (const Algorithm algorithm : kAlgorithms)
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
        EXPECT_EQ(sums(run_ranks, n, algorithm, type), sums(run_ranks, n, algorithm, type))
            << n << " " << program::algorithm_name(algorithm);
}

// Direct sums are taken in rank order: the bits of a loop.
TEST(Bits, OfADirectSumAreThoseOfALoopOverRanks) {
  constexpr int n = 5;
  const auto term = [](int rank, int64_t i) {
    return std::pow(10.0f, static_cast<float>((rank * 3 + i) % 9 - 4)) * 1.1f;
  };
  run_ranks(n, [&](World& world) {
    const auto group = world.communicator(all_ranks(n), "world");
    const at::Tensor tensor = floats(1003, [&](int64_t i) { return term(world.rank(), i); });
    group->all_reduce(tensor, {.id = program::named_call("loop"), .algorithm = Algorithm::kDirect}).wait();
    expect(
        tensor,
        [&](int64_t i) {
          float sum = term(0, i);
          for (int rank = 1; rank < n; ++rank) sum += term(rank, i);
          return static_cast<double>(sum);
        },
        "direct");
  });
}

TEST(Elements, BFloat16SumsAreRoundedOncePerAddition) {
  run_ranks(2, [](World& world) {
    const auto group = world.communicator({0, 1}, "world");
    // Against LibTorch's own bf16 addition, which also rounds an fp32 sum to nearest even.
    at::Tensor terms[2];
    for (int rank = 0; rank < 2; ++rank) {
      at::Tensor tensor = at::empty({4096}, at::kFloat);
      RandomStream(7, cat("term ", rank)).normal(0, {tensor.mutable_data_ptr<float>(), 4096});
      terms[rank] = tensor.to(at::kBFloat16);
    }
    const at::Tensor expected = at::add(terms[0], terms[1]);
    const at::Tensor mine = terms[world.rank()].to(tensors_of_calls().device);
    group->all_reduce(mine, {.id = program::named_call("bf16")}).wait();
    EXPECT_TRUE(bits_of(mine) == bits_of(expected));
  });
}

// Of many terms: the bits of one sum in fp32, rounded at its end.
TEST(Elements, ADirectBFloat16SumIsRoundedOnce) {
  constexpr int n = 5;
  run_ranks(n, [](World& world) {
    const auto group = world.communicator(all_ranks(n), "world");
    const at::Tensor mine = normals_there(world.rank(), at::kBFloat16);
    at::Tensor sum = normals(0, at::kBFloat16).to(at::kFloat);
    for (int rank = 1; rank < n; ++rank) sum = at::add(sum, normals(rank, at::kBFloat16).to(at::kFloat));
    for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kExchange}) {
      const at::Tensor tensor = mine.clone();
      group->all_reduce(tensor, {.id = program::named_call("bf16"), .algorithm = algorithm}).wait();
      EXPECT_EQ(bits_of(tensor), bits_of(sum.to(at::kBFloat16))) << program::algorithm_name(algorithm);
    }
  });
}

TEST(Elements, OtherTypesAndTheMaximum) {
  run_ranks(3, [](World& world) {
    const auto group = world.communicator(all_ranks(3), "world");
    const int r = world.rank();
    const at::Tensor whole = filled<int64_t>(5, at::kLong, [&](int64_t i) { return static_cast<double>((r + 1) * i); });
    group->all_reduce(whole, {.id = program::named_call("int64")}).wait();
    const at::Tensor fine =
        filled<double>(5, at::kDouble, [&](int64_t i) { return (r + 1) * 0.25 * static_cast<double>(i); });
    group->all_reduce(fine, {.id = program::named_call("fp64")}).wait();
    const at::Tensor largest = floats(4, [&](int64_t i) { return i == 3 && r == 1 ? NAN : i == r ? 10.0 + r : -1.0; });
    const at::Tensor at_once = largest.clone();
    group->all_reduce(largest, {.id = program::named_call("max"), .op = ReduceOp::kMax}).wait();
    group->all_reduce(at_once, {.id = program::named_call("max"), .algorithm = Algorithm::kExchange, .op = ReduceOp::kMax}).wait();
    EXPECT_EQ(bits_of(largest), bits_of(at_once));
    const at::Tensor wholes = whole.cpu(), fines = fine.cpu(), most = largest.cpu();
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(wholes.const_data_ptr<int64_t>()[i], 6 * i);
      EXPECT_EQ(fines.const_data_ptr<double>()[i], 1.5 * static_cast<double>(i));
    }
    for (int i = 0; i < 3; ++i) EXPECT_EQ(most.const_data_ptr<float>()[i], 10.0f + static_cast<float>(i));
    EXPECT_TRUE(std::isnan(most.const_data_ptr<float>()[3]));
  });
}

}  // namespace
}  // namespace lockstep::comm
