#include "lockstep/comm/algorithms.h"

#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/board_algorithms.h"
#include "lockstep/comm/chunks.h"

namespace lockstep::comm {
namespace {

using program::Algorithm;
using program::Collective;

Bytes all_of(const Elements& buffer) {
  return {buffer.data, static_cast<size_t>(buffer.numel) * buffer.size};
}

// An empty tensor has no address, which memcpy may not be given.
void copy(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty() && to != from.data()) std::memcpy(to, from.data(), from.size());
}

// Parts of these sizes, side by side.
std::vector<Bytes> side_by_side(std::byte* data, const std::vector<int64_t>& numels, size_t element_size) {
  std::vector<Bytes> parts;
  for (const int64_t numel : numels) {
    parts.emplace_back(data, static_cast<size_t>(numel) * element_size);
    if (numel > 0) data += parts.back().size();
  }
  return parts;
}

// The consumer that writes own (op) arriving to `out`.
auto combine_into(std::byte* out, const std::byte* own, Combine combine) {
  return [=](std::span<const std::byte> piece, size_t offset) {
    combine(out + offset, own + offset, piece.data(), piece.size());
  };
}

// Where a rank puts the sum of its own chunk and what arrived, in each step of a ring.
using Destination = std::function<std::byte*(int step, Bytes own)>;

void ring_reduce_scatter(Link& link, const Chunks& input, Combine combine, const Destination& destination) {
  const int n = link.size();
  const int r = link.rank();
  std::span<const std::byte> outgoing = input[link.wrap(r - 1)];
  for (int step = 0; step < n - 1; ++step) {
    const Bytes own = input[link.wrap(r - step - 2)];
    std::byte* sum = destination(step, own);
    link.send_recv(link.wrap(r + 1), outgoing, link.wrap(r - 1), own.size(), combine_into(sum, own.data(), combine));
    outgoing = {sum, own.size()};
  }
}

void ring_all_gather(Link& link, const Chunks& chunks) {
  const int r = link.rank();
  for (int step = 0; step < link.size() - 1; ++step)
    link.send_recv(link.wrap(r + 1), chunks[link.wrap(r - step)], link.wrap(r - 1), chunks[link.wrap(r - step - 1)]);
}

// The sum of what every rank has, in rank order: `own` here, the rest as `receive` hands it over. `sum` may be `own`.
void sum_in_rank_order(Link& link, Bytes own, std::byte* sum, Combine combine,
                       const std::function<void(int peer, const Transport::Consumer&)>& exchange) {
  const int r = link.rank();
  // Up to rank 1 an addition may take its own term where it stands, since two terms commute.
  std::unique_ptr<std::byte[]> kept;
  const std::byte* mine = own.data();
  if (r > 1 && sum == own.data()) {
    kept = std::make_unique_for_overwrite<std::byte[]>(own.size());
    copy(kept.get(), own);
    mine = kept.get();
  }
  for (int peer = 0; peer < link.size(); ++peer) {
    if (peer == r) {
      exchange(peer, {});
      if (r > 1) combine(sum, sum, mine, own.size());
    } else if (peer == 0 && r > 1) {
      exchange(peer, [&](std::span<const std::byte> piece, size_t offset) {
        std::memcpy(sum + offset, piece.data(), piece.size());
      });
    } else {
      const bool first = (peer == 0 && r == 1) || (peer == 1 && r == 0);
      exchange(peer, combine_into(sum, first ? mine : sum, combine));
    }
  }
}

// The sum of what every rank has, rounded once: all terms are kept until the last has come.
void sum_at_once(Link& link, Bytes own, std::byte* sum, CombineAll combine,
                 const std::function<void(int peer, Bytes into)>& exchange) {
  std::vector<std::unique_ptr<std::byte[]>> arrived(static_cast<size_t>(link.size()));
  std::vector<const std::byte*> terms(static_cast<size_t>(link.size()), own.data());
  for (int peer = 0; peer < link.size(); ++peer) {
    const size_t p = static_cast<size_t>(peer);
    if (peer != link.rank()) {
      arrived[p] = std::make_unique_for_overwrite<std::byte[]>(own.size());
      terms[p] = arrived[p].get();
    }
    exchange(peer, {arrived[p].get(), own.size()});
  }
  combine(sum, terms, own.size());
}

// Rank k sends in step k, so that each owner can add in rank order without keeping what came early.
void direct_reduce_scatter(Link& link, const Chunks& input, std::byte* output, const Reduction& reduction) {
  const Bytes own = input[link.rank()];
  const auto send_all = [&] {
    for (int other = 0; other < link.size(); ++other)
      if (other != link.rank()) link.send(other, input[other]);
  };
  if (reduction.rounds_once)
    return sum_at_once(link, own, output, reduction.all,
                       [&](int peer, Bytes into) { peer == link.rank() ? send_all() : link.recv(peer, into); });
  sum_in_rank_order(link, own, output, reduction.pair, [&](int peer, const Transport::Consumer& consume) {
    peer == link.rank() ? send_all() : link.recv(peer, own.size(), consume);
  });
}

void exchange(Link& link, const Elements& buffer, const Reduction& reduction) {
  const Bytes own = all_of(buffer);
  sum_at_once(link, own, own.data(), reduction.all, [&](int peer, Bytes into) {
    if (peer != link.rank()) return link.recv(peer, into);
    for (int other = 0; other < link.size(); ++other)
      if (other != peer) link.send(other, own);
  });
}

void direct_all_gather(Link& link, const Chunks& chunks) {
  const int r = link.rank();
  for (int step = 1; step < link.size(); ++step)
    link.send_recv(link.wrap(r + step), chunks[r], link.wrap(r - step), chunks[link.wrap(r - step)]);
}

int lowest_bit(int v, int n) {
  return v == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(n))) : (v & -v);
}

void tree_reduce(Link& link, const Elements& buffer, int root, Combine combine) {
  const Bytes bytes = all_of(buffer);
  const int v = link.wrap(link.rank() - root);
  for (int m = 1; m < lowest_bit(v, link.size()) && v + m < link.size(); m *= 2)
    link.recv(link.wrap(root + v + m), bytes.size(), combine_into(bytes.data(), bytes.data(), combine));
  if (v > 0) link.send(link.wrap(root + v - lowest_bit(v, link.size())), bytes);
}

void tree_broadcast(Link& link, const Elements& buffer, int root) {
  const Bytes bytes = all_of(buffer);
  const int v = link.wrap(link.rank() - root);
  if (v > 0) link.recv(link.wrap(root + v - lowest_bit(v, link.size())), bytes);
  for (int m = lowest_bit(v, link.size()) / 2; m > 0; m /= 2)
    if (v + m < link.size()) link.send(link.wrap(root + v + m), bytes);
}

void halving_doubling(Link& link, const Elements& buffer, Combine combine) {
  const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(link.size())));
  const int r = link.rank();
  const Bytes bytes = all_of(buffer);
  if (r >= p) {  // folded into rank r - p
    link.send(r - p, bytes);
    link.recv(r - p, bytes);
    return;
  }
  if (r + p < link.size()) link.recv(r + p, bytes.size(), combine_into(bytes.data(), bytes.data(), combine));
  const Chunks chunks(buffer, p);
  for (int d = p / 2; d > 0; d /= 2) {
    const int partner = r ^ d;
    const Bytes kept = chunks.window(r & ~(d - 1), d);
    link.send_recv(partner, chunks.window(partner & ~(d - 1), d), partner, kept.size(),
                   combine_into(kept.data(), kept.data(), combine));
  }
  for (int d = 1; d < p; d *= 2) {
    const int partner = r ^ d;
    link.send_recv(partner, chunks.window(r & ~(d - 1), d), partner, chunks.window(partner & ~(d - 1), d));
  }
  if (r + p < link.size()) link.send(r + p, bytes);
}

[[noreturn]] void no_such(const char* collective, Algorithm algorithm) {
  throw InternalError(cat(collective, " has no algorithm ", program::algorithm_name(algorithm)));
}

}  // namespace

bool on_board(Collective collective, Algorithm algorithm) {
  if (algorithm == Algorithm::kExchange) return true;
  return algorithm == Algorithm::kDirect &&
         (collective == Collective::kAllReduce || collective == Collective::kAllGather ||
          collective == Collective::kReduceScatter || collective == Collective::kBarrier);
}

void all_reduce(Link& link, Algorithm algorithm, const Elements& buffer, const Reduction& reduction) {
  const Chunks chunks(buffer, link.size());
  switch (algorithm) {
    case Algorithm::kRing:
      ring_reduce_scatter(link, chunks, reduction.pair, [](int, Bytes own) { return own.data(); });
      return ring_all_gather(link, chunks);
    case Algorithm::kTree:
      tree_reduce(link, buffer, 0, reduction.pair);
      return tree_broadcast(link, buffer, 0);
    case Algorithm::kHalvingDoubling:
      return halving_doubling(link, buffer, reduction.pair);
    case Algorithm::kDirect:
      if (link.has_board()) return board_all_reduce(link, buffer, reduction.all);
      direct_reduce_scatter(link, chunks, chunks[link.rank()].data(), reduction);
      return direct_all_gather(link, chunks);
    case Algorithm::kExchange:
      return link.has_board() ? board_exchange(link, buffer, reduction.all) : exchange(link, buffer, reduction);
  }
}

void reduce(Link& link, Algorithm algorithm, const Elements& buffer, int root, Combine combine) {
  if (algorithm == Algorithm::kTree) return tree_reduce(link, buffer, root, combine);
  if (algorithm != Algorithm::kDirect) no_such("reduce", algorithm);
  const Bytes bytes = all_of(buffer);
  if (link.rank() != root) return link.send(root, bytes);
  sum_in_rank_order(link, bytes, bytes.data(), combine, [&](int peer, const Transport::Consumer& consume) {
    if (peer != root) link.recv(peer, bytes.size(), consume);
  });
}

void broadcast(Link& link, Algorithm algorithm, const Elements& buffer, int root) {
  if (algorithm == Algorithm::kTree) return tree_broadcast(link, buffer, root);
  if (algorithm != Algorithm::kDirect) no_such("broadcast", algorithm);
  if (link.rank() != root) return link.recv(root, all_of(buffer));
  for (int peer = 0; peer < link.size(); ++peer)
    if (peer != root) link.send(peer, all_of(buffer));
}

void all_gather(Link& link, Algorithm algorithm, const Elements& buffer) {
  const Chunks chunks(buffer, link.size());
  if (algorithm == Algorithm::kRing) return ring_all_gather(link, chunks);
  if (algorithm == Algorithm::kDirect)
    return link.has_board() ? board_all_gather(link, buffer) : direct_all_gather(link, chunks);
  no_such("all_gather", algorithm);
}

void reduce_scatter(Link& link, Algorithm algorithm, const Elements& input, std::byte* output,
                    const Reduction& reduction) {
  const Chunks chunks(input, link.size());
  if (algorithm == Algorithm::kDirect)
    return link.has_board() ? board_reduce_scatter(link, input, output, reduction.all)
                            : direct_reduce_scatter(link, chunks, output, reduction);
  if (algorithm != Algorithm::kRing) no_such("reduce_scatter", algorithm);
  // Two places in turn for the sums that pass through: one is sent while the other is written.
  const int passing = link.size() - 2;
  const size_t largest = chunks[0].size();
  std::unique_ptr<std::byte[]> sums[2];
  for (int i = 0; i < std::min(passing, 2); ++i) sums[i] = std::make_unique_for_overwrite<std::byte[]>(largest);
  ring_reduce_scatter(link, chunks, reduction.pair,
                      [&](int step, Bytes) { return step == passing ? output : sums[step % 2].get(); });
}

void all_to_all(Link& link, const Elements& input, std::byte* output) {
  const int r = link.rank();
  const Chunks in(input, link.size());
  const Elements result{.data = output, .numel = input.numel, .size = input.size};
  const Chunks out(result, link.size());
  copy(out[r].data(), in[r]);
  for (int step = 1; step < link.size(); ++step)
    link.send_recv(link.wrap(r + step), in[link.wrap(r + step)], link.wrap(r - step), out[link.wrap(r - step)]);
}

void all_to_all_v(Link& link, const Elements& input, std::byte* output, const PartSizes& parts) {
  link.compare_parts(parts);
  const std::vector<Bytes> in = side_by_side(input.data, parts.sent, input.size);
  const std::vector<Bytes> out = side_by_side(output, parts.received, input.size);
  const auto at = [&](int rank) { return static_cast<size_t>(link.wrap(rank)); };
  const int r = link.rank();
  copy(out[at(r)].data(), in[at(r)]);
  for (int step = 1; step < link.size(); ++step)
    link.send_recv(link.wrap(r + step), in[at(r + step)], link.wrap(r - step), out[at(r - step)]);
}

void shift(Link& link, const Elements& input, std::byte* output, int by) {
  const Bytes out = all_of(input);
  link.send_recv(link.wrap(link.rank() + by), out, link.wrap(link.rank() - by), Bytes(output, out.size()));
}

void gather(Link& link, const std::byte* part, const Elements& full, int root) {
  const Chunks chunks(full, link.size());
  const std::span<const std::byte> own(part, static_cast<size_t>(full.numel / link.size()) * full.size);
  if (link.rank() != root) return link.send(root, own);
  copy(chunks[root].data(), own);
  for (int peer = 0; peer < link.size(); ++peer)
    if (peer != root) link.recv(peer, chunks[peer]);
}

void scatter(Link& link, const Elements& full, std::byte* part, int root) {
  const Chunks chunks(full, link.size());
  const Bytes own(part, static_cast<size_t>(full.numel / link.size()) * full.size);
  if (link.rank() != root) return link.recv(root, own);
  for (int peer = 0; peer < link.size(); ++peer)
    if (peer != root) link.send(peer, chunks[peer]);
  copy(part, chunks[root]);
}

void barrier(Link& link) {
  int64_t nothing = 0;
  const Elements buffer{.data = reinterpret_cast<std::byte*>(&nothing), .numel = 1, .size = sizeof nothing};
  all_reduce(link, Algorithm::kDirect, buffer, reduction_of(ElementType::kInt64, ReduceOp::kSum));
}

}  // namespace lockstep::comm
