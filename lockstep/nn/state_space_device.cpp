#include "lockstep/nn/state_space_device.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/nn/upload.h"

namespace lockstep::nn {
namespace {

// How tokens are divided: R = B * pieces pieces of C chunks of Q tokens each, the last one filled up with zeros. Heads are [G, K].
struct Chunks {
  explicit Chunks(const Scan& scan)
      : rows(scan.x.size(0) * scan.pieces),
        length(scan.x.size(1) / scan.pieces),
        size(std::min(scan.chunk, length)),
        count((length + size - 1) / size),
        groups(scan.b.size(2)),
        of_group(scan.x.size(2) / groups) {}

  // [B, T, n, ...] -> [R, C, Q, n, ...] fp32
  at::Tensor cut(const at::Tensor& x) const {
    at::Tensor rest = x.to(at::kFloat).reshape({rows, length, -1});
    rest = at::constant_pad_nd(rest, {0, 0, 0, count * size - length}, 0);
    std::vector<int64_t> shape = {rows, count, size};
    for (int64_t i = 2; i < x.dim(); ++i) shape.push_back(x.size(i));
    return rest.view(shape);
  }
  at::Tensor by_head(const at::Tensor& x) const {  // [B, T, H, P] -> [R, C, G, K, Q, P]
    return cut(x).permute({0, 1, 3, 2, 4}).reshape({rows, count, groups, of_group, size, x.size(3)});
  }
  at::Tensor by_group(const at::Tensor& x) const {  // [B, T, G, N] -> [R, C, G, 1, Q, N]
    return cut(x).permute({0, 1, 3, 2, 4}).unsqueeze(3);
  }
  at::Tensor powers(const at::Tensor& x) const {  // [B, T, H] -> [R, C, G, K, Q]
    return cut(x).permute({0, 1, 3, 2}).reshape({rows, count, groups, of_group, size});
  }
  // Back to [B, T, heads, n] of x.
  void put(const at::Tensor& from, const at::Tensor& to) const {  // [R, C, G, K, Q, n] or without n
    const bool wide = to.dim() == 4;
    const at::Tensor heads = from.reshape({rows, count, to.size(2), size, wide ? to.size(3) : 1});
    to.copy_(heads.permute({0, 1, 3, 2, 4}).reshape({rows, count * size, -1}).narrow(1, 0, length).reshape(to.sizes()));
  }
  // [R, C, ...] of heads, of one chunk: [R, G, K, P, N] <-> [.., H, P, N]
  at::Tensor states(const at::Tensor& x) const {  // [B, pieces, (C,) H, P, N] -> [R, (C,) G, K, P, N]
    std::vector<int64_t> shape = {rows};
    if (x.dim() == 6) shape.push_back(count);
    shape.insert(shape.end(), {groups, of_group, x.size(-2), x.size(-1)});
    return x.view(shape);
  }

  int64_t rows, length, size, count, groups, of_group;
};

// Documents that began within the chunk, up to each token [R, C, 1, 1, Q]; behind the last token as there.
at::Tensor documents_of(const Scan& scan, const Chunks& chunks) {
  std::vector<int32_t> documents(static_cast<size_t>(chunks.rows * chunks.count * chunks.size), 0);
  if (scan.begins.defined()) {
    const uint8_t* begins = scan.begins.const_data_ptr<uint8_t>();
    for (int64_t row = 0; row < chunks.rows; ++row) {
      int32_t seen = 0;
      for (int64_t t = 0; t < chunks.count * chunks.size; ++t) {
        if (t % chunks.size == 0) seen = 0;
        if (t < chunks.length && begins[row * chunks.length + t]) ++seen;
        documents[static_cast<size_t>(row * chunks.count * chunks.size + t)] = seen;
      }
    }
  }
  return upload(std::span<const int32_t>(documents), scan.x.device()).view({chunks.rows, chunks.count, 1, 1, chunks.size});
}

at::Tensor transposed(const at::Tensor& x) { return x.transpose(-1, -2); }

// Decays of all chunks; everything [R, C, G, K, Q] or smaller.
struct Decays {
  Decays(const Scan& scan, const Chunks& chunks) : documents(documents_of(scan, chunks)) {
    delta = chunks.powers(scan.delta);
    a = scan.a.view({1, 1, chunks.groups, chunks.of_group, 1});
    sums = (delta * a).cumsum(-1);
    const at::Tensor last = sums.narrow(-1, chunks.size - 1, 1), last_document = documents.narrow(-1, chunks.size - 1, 1);
    in = at::exp(sums).masked_fill(documents.ne(0), 0);
    out = at::exp(last - sums).masked_fill(documents.ne(last_document), 0);
    whole = at::exp(last).masked_fill(last_document.ne(0), 0).unsqueeze(-1);
  }
  // [R, C, G, K, Q, Q]: from token s [column] to token t [row]; zero where t does not see s.
  at::Tensor pairs() const {
    const at::Tensor place = at::arange(sums.size(-1), sums.options().dtype(at::kLong));
    const at::Tensor hidden =
        place.unsqueeze(-1).lt(place).logical_or(documents.unsqueeze(-1).ne(documents.unsqueeze(-2)));
    return at::exp((sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(hidden, -std::numeric_limits<float>::infinity()));
  }
  at::Tensor documents, delta, a, sums;
  at::Tensor in, out;  // from the chunk's begin up to a token; from it up to the chunk's end
  at::Tensor whole;    // [R, C, G, K, 1, 1]
};

// The gradients of the states behind all chunks, and of that before the first.
struct StateGradients {
  at::Tensor behind, first;  // [R, C, G, K, P, N], [R, G, K, P, N]
};
StateGradients state_gradients(const Chunks& chunks, const Decays& decays, const at::Tensor& dy, const at::Tensor& c, const at::Tensor& dlast) {
  const at::Tensor given = at::matmul(transposed(dy * decays.in.unsqueeze(-1)), c);
  StateGradients gradients{.behind = at::empty(given.sizes(), given.options()),
                           .first = dlast.defined() ? chunks.states(dlast).clone() : at::zeros(given.select(1, 0).sizes(), given.options())};
  for (int64_t chunk = chunks.count; chunk-- > 0;) {
    gradients.behind.select(1, chunk).copy_(gradients.first);
    gradients.first = gradients.first * decays.whole.select(1, chunk) + given.select(1, chunk);
  }
  return gradients;
}

at::Tensor skip_of(const Scan& scan, const Chunks& chunks) { return scan.d.view({1, 1, chunks.groups, chunks.of_group, 1, 1}); }

}  // namespace

namespace {

ScanStates states_of(const Scan& scan, const Chunks& chunks, const Decays& decays) {
  const int64_t batch = scan.x.size(0), heads = scan.x.size(2), channels = scan.x.size(3), numbers = scan.b.size(3);
  const at::Tensor inputs = chunks.by_head(scan.x) * (decays.delta * decays.out).unsqueeze(-1);
  const at::Tensor given = at::matmul(transposed(inputs), chunks.by_group(scan.b));  // [R, C, G, K, P, N]
  ScanStates states{.before = at::empty({batch, scan.pieces, chunks.count, heads, channels, numbers}, given.options()),
                    .after = {},
                    .decay = decays.whole.prod(1).view({batch, scan.pieces, heads})};
  const at::Tensor before = chunks.states(states.before);
  at::Tensor state = at::zeros(given.select(1, 0).sizes(), given.options());
  for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
    before.select(1, chunk).copy_(state);
    state = state * decays.whole.select(1, chunk) + given.select(1, chunk);
  }
  states.after = state.view({batch, scan.pieces, heads, channels, numbers});
  return states;
}

}  // namespace

void add_first_states_device(const Scan& scan, const at::Tensor& first, ScanStates& states, const at::Tensor& y) {
  const Chunks chunks(scan);
  const Decays decays(scan, chunks);
  const at::Tensor before = chunks.states(states.before), left = at::empty(before.sizes(), before.options());
  at::Tensor state = chunks.states(first);
  for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
    left.select(1, chunk).copy_(state);
    state = state * decays.whole.select(1, chunk);
  }
  before.add_(left);
  const at::Tensor more = at::empty(y.sizes(), y.options().dtype(at::kFloat));
  chunks.put(at::matmul(chunks.by_group(scan.c), transposed(left)) * decays.in.unsqueeze(-1), more);
  y.add_(more);
}

at::Tensor scan_forward_device(const Scan& scan, ScanStates* kept) {
  const Chunks chunks(scan);
  const Decays decays(scan, chunks);
  ScanStates states = states_of(scan, chunks, decays);
  const at::Tensor x = chunks.by_head(scan.x), b = chunks.by_group(scan.b), c = chunks.by_group(scan.c);
  at::Tensor y = at::matmul(c, transposed(chunks.states(states.before))) * decays.in.unsqueeze(-1);
  y += at::matmul(at::matmul(c, transposed(b)) * decays.pairs(), x * decays.delta.unsqueeze(-1));
  y += x * skip_of(scan, chunks);
  at::Tensor outputs = at::empty(scan.x.sizes(), scan.x.options());
  chunks.put(y, outputs);
  if (kept) *kept = std::move(states);
  return outputs;
}

at::Tensor scan_backward_first_device(const Scan& scan, const at::Tensor& dy) {
  const Chunks chunks(scan);
  const Decays decays(scan, chunks);
  return state_gradients(chunks, decays, chunks.by_head(dy), chunks.by_group(scan.c), {})
      .first.reshape({scan.x.size(0), scan.pieces, scan.x.size(2), scan.x.size(3), scan.b.size(3)});
}

void scan_backward_device(const Scan& scan, const ScanStates& states, const at::Tensor& dy_given, const at::Tensor& dlast,
                          const ScanGradients& gradients) {
  const Chunks chunks(scan);
  const Decays decays(scan, chunks);
  const at::Tensor x = chunks.by_head(scan.x), b = chunks.by_group(scan.b), c = chunks.by_group(scan.c), dy = chunks.by_head(dy_given);
  const at::Tensor delta = decays.delta.unsqueeze(-1), inputs = x * delta, before = chunks.states(states.before);
  const at::Tensor dstates = state_gradients(chunks, decays, dy, c, dlast).behind;

  // What a token sees of its chunk.
  const at::Tensor pairs = decays.pairs(), scores = at::matmul(c, transposed(b));
  at::Tensor dscores = at::matmul(dy, transposed(inputs)) * pairs;
  const at::Tensor along = dscores * scores;
  at::Tensor dpower = (along.sum(-1) - along.sum(-2)).to(at::kDouble);  // these differences nearly cancel
  dscores = dscores.sum(3, /*keepdim=*/true);
  // What it sees of the state before, and what it gives to the one behind.
  const at::Tensor dc_heads = at::matmul(dy * decays.in.unsqueeze(-1), before);
  const at::Tensor given = at::matmul(b, transposed(dstates)) * decays.out.unsqueeze(-1);
  const at::Tensor dinputs = given + at::matmul(transposed(scores * pairs), dy);
  dpower += (dc_heads * c).sum(-1);
  // A power a delta_t is part of every decay from before t to t or later.
  const at::Tensor behind = (given * inputs).sum(-1), kept = (decays.whole * before * dstates).sum({-1, -2}).unsqueeze(-1);
  dpower = dpower.flip({-1}).cumsum(-1).flip({-1}) + kept + behind.cumsum(-1) - behind;

  gradients.da.add_((dpower * decays.delta).sum({0, 1, 4}).view({-1}));
  gradients.dd.add_((x * dy).sum({0, 1, 4, 5}).view({-1}));
  chunks.put(decays.a * dpower + (x * dinputs).sum(-1), gradients.ddelta);
  chunks.put(dc_heads.sum(3, true) + at::matmul(dscores, b), gradients.dc);
  chunks.put(at::matmul(inputs * decays.out.unsqueeze(-1), dstates).sum(3, true) + at::matmul(transposed(dscores), c), gradients.db);
  chunks.put(dinputs * delta + dy * skip_of(scan, chunks), gradients.dx);
}

at::Tensor scan_step_device(const Scan& scan, const at::Tensor& state) {
  const int64_t rows = scan.x.size(0), heads = scan.x.size(2), groups = scan.b.size(2), of_group = heads / groups;
  const at::Tensor delta = scan.delta.view({rows, groups, of_group, 1, 1});
  const at::Tensor x = scan.x.to(at::kFloat).reshape({rows, groups, of_group, -1, 1});
  const at::Tensor b = scan.b.to(at::kFloat).reshape({rows, groups, 1, 1, -1}), c = scan.c.to(at::kFloat).reshape({rows, groups, 1, -1, 1});
  const at::Tensor all = state.view({rows, groups, of_group, x.size(3), b.size(4)});
  all.mul_(at::exp(delta * scan.a.view({groups, of_group, 1, 1}))).add_(delta * x * b);
  return (at::matmul(all, c) + x * scan.d.view({groups, of_group, 1, 1})).reshape(scan.x.sizes()).to(scan.x.scalar_type());
}

}  // namespace lockstep::nn
