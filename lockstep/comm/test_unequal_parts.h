// Tests of exchanges of unequal parts, run over each backend as those of test_collectives.h are.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "lockstep/comm/test_collectives.h"

namespace lockstep::comm {
namespace {

// Some parts are empty; of three ranks and more the first sends nothing at all.
TEST_P(Collectives, AllToAllOfUnequalParts) {
  for_sizes([](Communicator& group, int n, int64_t size) {
    constexpr int64_t kWidth = 4;
    const int r = group.rank();
    const std::string site = cat("unequal ", size);
    const auto rows = [&](int a, int b) { return a == 0 && n > 2 ? 0 : (a + 2 * b + 1) % 3 * std::min<int64_t>(size, 20000); };
    const auto between = [](int a, int b, int64_t i) { return 1000.0 * a + 100.0 * b + static_cast<double>(i % 13); };
    std::vector<int64_t> sent, received;
    std::vector<double> mine, expected;
    std::map<int, int64_t> bytes;
    for (int peer = 0; peer < n; ++peer) {
      sent.push_back(rows(r, peer));
      received.push_back(rows(peer, r));
      for (int64_t i = 0; i < rows(r, peer) * kWidth; ++i) mine.push_back(between(r, peer, i));
      for (int64_t i = 0; i < rows(peer, r) * kWidth; ++i) expected.push_back(between(peer, r, i));
      if (peer != r && rows(r, peer) > 0) bytes[peer] = rows(r, peer) * kWidth * 4;
    }
    const auto numel = [](const std::vector<double>& values) { return static_cast<int64_t>(values.size()); };
    const at::Tensor input = floats(numel(mine), [&](int64_t i) { return mine[static_cast<size_t>(i)]; });
    const at::Tensor output = room(numel(expected));
    group.all_to_all_v(input.view({numel(mine) / kWidth, kWidth}), output.view({numel(expected) / kWidth, kWidth}), sent, received,
                       {.id = program::named_call(site), .blocking = size % 2 == 0}).wait();
    expect(
        output, [&](int64_t i) { return expected[static_cast<size_t>(i)]; }, site);
    program::Ledger predicted;
    if (n > 1)
      predicted.add({.id = program::named_call(site), .collective = Collective::kAllToAll, .axis = "world", .algorithm = Algorithm::kDirect},
                    numel(mine) * 4, bytes);
    EXPECT_EQ(predicted, group.take_ledger());
  });
}

}  // namespace
}  // namespace lockstep::comm
