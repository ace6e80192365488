// Sequences in parts, for tests.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/comm/world.h"
#include "lockstep/data/token_split.h"
#include "lockstep/nn/token_places.h"
#include "lockstep/parallel/context/group.h"

namespace lockstep::parallel::testing {

// Sequences of one length, by where their documents begin.
struct TestSequences {
  int64_t length = 1;
  std::vector<std::vector<int32_t>> documents;
  int64_t count() const { return static_cast<int64_t>(documents.size()); }
};

inline at::Tensor int_table(const std::vector<std::vector<int32_t>>& rows) {
  const at::Tensor table = at::empty({static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows.front().size())}, at::kInt);
  int32_t* to = table.data_ptr<int32_t>();
  for (const std::vector<int32_t>& row : rows) to = std::ranges::copy(row, to).out;
  return table;
}

// What `rank` of the split has. Positions begin with every document.
inline nn::TokenPlaces places_of(const TestSequences& sequences, const data::TokenSplit& split, int rank) {
  nn::TokenPlaces places{.length = sequences.length, .positions = {}, .index = {}, .first_seen = {}, .rank = rank};
  std::vector<std::vector<std::vector<int32_t>>> index(static_cast<size_t>(split.ranks));  // by rank, then by sequence
  std::vector<std::vector<int32_t>> begins;
  for (const std::vector<int32_t>& documents : sequences.documents) {
    auto of_ranks = data::split_tokens(sequences.length, split, documents);
    for (size_t r = 0; r < of_ranks.size(); ++r) index[r].push_back(std::move(of_ranks[r]));
    std::vector<int32_t>& row = begins.emplace_back();
    for (int32_t place = 0; place < sequences.length; ++place) row.push_back(*--std::ranges::upper_bound(documents, place));
  }
  const std::vector<std::vector<int32_t>>& mine = index[static_cast<size_t>(rank)];
  places.index = int_table(mine);
  std::vector<std::vector<int32_t>> first = mine;
  for (size_t b = 0; b < first.size(); ++b)
    for (int32_t& place : first[b])
      if (place < sequences.length) place = begins[b][static_cast<size_t>(place)];
  places.first_seen = int_table(first);
  places.positions = (places.index - places.first_seen).to(at::kLong);
  if (split.ranks == 1) return places;
  for (const std::vector<std::vector<int32_t>>& of_rank : index) places.index_of_ranks.push_back(int_table(of_rank));
  places.first_seen_of_places = int_table(begins);
  return places;
}

// whole [B, S, ...] -> what stands at the places, [B, T, ...]; `filler` behind the end.
inline at::Tensor part_of(const at::Tensor& whole, const nn::TokenPlaces& places, double filler = 0) {
  std::vector<int64_t> shape = whole.sizes().vec();
  shape[1] = places.index.size(1);
  at::Tensor part = at::full(shape, filler, whole.options().requires_grad(false));
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t t = 0; t < shape[1]; ++t) {
      const int32_t place = places.index.const_data_ptr<int32_t>()[b * shape[1] + t];
      if (place < places.length) part[b][t].copy_(whole.detach()[b][place]);
    }
  return part;
}

// part [B, T, ...], zero where its tokens are behind the end.
inline at::Tensor without_filler(const at::Tensor& part, const nn::TokenPlaces& places) {
  std::vector<int64_t> shape(static_cast<size_t>(part.dim()), 1);
  shape[0] = part.size(0), shape[1] = part.size(1);
  return part * places.index.lt(places.length).view(shape).to(part.scalar_type());
}

// [B, S, S]: 0 where a query sees a key, else -1e30. From documents and window alone.
inline at::Tensor bias_of(const TestSequences& sequences, int64_t window) {
  const at::Tensor bias = at::full({sequences.count(), sequences.length, sequences.length}, -1e30, at::kFloat);
  for (int64_t b = 0; b < sequences.count(); ++b) {
    const std::vector<int32_t>& documents = sequences.documents[static_cast<size_t>(b)];
    const auto document = [&](int64_t place) { return std::ranges::count_if(documents, [&](int32_t begin) { return begin <= place; }); };
    for (int64_t query = 0; query < sequences.length; ++query) {
      float* const row = bias.data_ptr<float>() + (b * sequences.length + query) * sequences.length;
      for (int64_t key = 0; key <= query; ++key)
        if (document(query) == document(key) && (window == 0 || query - key < window)) row[key] = 0;
    }
  }
  return bias;
}

// A context group of this rank with its communicators.
struct TestGroup {
  struct Options {
    config::ContextKind kind = config::ContextKind::kRing;
    int inner_ranks = 1;
    config::ContextSplit split = config::ContextSplit::kZigzag;
    bool documents = false;
    bool overlap = true;
    auto operator<=>(const Options&) const = default;
  };
  TestGroup(comm::World& world, int ranks, const Options& options) {
    const int inner_ranks = options.inner_ranks;
    const int rank = world.rank(), first = rank / inner_ranks * inner_ranks;
    std::vector<int> everybody(static_cast<size_t>(ranks)), neighbours(static_cast<size_t>(inner_ranks)), across;
    std::iota(everybody.begin(), everybody.end(), 0);
    std::iota(neighbours.begin(), neighbours.end(), first);
    for (int other = rank % inner_ranks; other < ranks; other += inner_ranks) across.push_back(other);
    all = world.communicator(everybody, "cp");
    if (options.kind == config::ContextKind::k2d) {
      inner = world.communicator(neighbours, "cp inner");
      outer = world.communicator(across, "cp outer");
    }
    group = std::make_unique<ContextGroup>(*all, ContextOptions{.kind = options.kind, .inner = inner.get(), .outer = outer.get(),
                                                                .overlap = options.overlap, .split = options.split,
                                                                .documents = options.documents});
  }
  std::unique_ptr<comm::Communicator> all, inner, outer;
  std::unique_ptr<ContextGroup> group;
};

}  // namespace lockstep::parallel::testing
