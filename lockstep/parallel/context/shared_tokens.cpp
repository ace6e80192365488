#include "lockstep/parallel/context/shared_tokens.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/base/check.h"

namespace lockstep::parallel {
namespace {

// The tokens of one set.
struct Set {
  at::Tensor index;  // [B, inner * T] int32, ascending
  at::Tensor rows;
};

Set set_of(const nn::TokenPlaces& places, int inner, int set) {
  const int64_t batch = places.index.size(0), tokens = places.index.size(1), all = inner * tokens;
  Set result{.index = at::empty({batch, all}, at::kInt), .rows = at::empty({batch, all}, at::kLong)};
  std::vector<std::pair<int32_t, int64_t>> sequence(static_cast<size_t>(all));  // place and row
  for (int64_t b = 0; b < batch; ++b) {
    size_t next = 0;
    for (int member = 0; member < inner; ++member) {
      const at::Tensor& index = places.index_of_ranks[static_cast<size_t>(set * inner + member)];
      const int32_t* const from = index.const_data_ptr<int32_t>() + b * tokens;
      for (int64_t t = 0; t < tokens; ++t) sequence[next++] = {from[t], (member * batch + b) * tokens + t};
    }
    std::ranges::sort(sequence);
    for (int64_t i = 0; i < all; ++i) {
      result.index.data_ptr<int32_t>()[b * all + i] = sequence[static_cast<size_t>(i)].first;
      result.rows.data_ptr<int64_t>()[b * all + i] = sequence[static_cast<size_t>(i)].second;
    }
  }
  return result;
}

// Of tokens at `index`: what is behind the end of a sequence sees itself alone.
at::Tensor first_seen_at(const at::Tensor& index, const nn::TokenPlaces& places) {
  const at::Tensor first = at::empty(index.sizes(), at::kInt);
  for (int64_t b = 0; b < index.size(0); ++b) {
    const int32_t* const of_places = places.plain ? nullptr : places.first_seen_of_places.const_data_ptr<int32_t>() + b * places.length;
    for (int64_t i = b * index.size(1); i < (b + 1) * index.size(1); ++i) {
      const int32_t at = index.const_data_ptr<int32_t>()[i];
      first.data_ptr<int32_t>()[i] = at >= places.length ? at : of_places ? of_places[at] : 0;
    }
  }
  return first;
}

}  // namespace

SharedTokens share_tokens(const nn::TokenPlaces& places, int inner) {
  LOCKSTEP_CHECK(places.ranks() % inner == 0 && places.rank < places.ranks(), "sets of ", inner, " of ", places.ranks(), " ranks, this one ",
                 places.rank);
  LOCKSTEP_CHECK(places.plain || (places.first_seen_of_places.defined() && places.first_seen_of_places.size(1) == places.length),
                 "documents of ", places.length, " places are not known");
  const int sets = places.ranks() / inner, own = places.rank / inner;
  SharedTokens shared{.places = {.length = places.length, .positions = {}, .index = {}, .first_seen = {}, .rank = own}, .rows = {}};
  for (int set = 0; set < sets; ++set) {
    Set tokens = set_of(places, inner, set);
    if (set == own) shared.places.index = tokens.index, shared.rows = tokens.rows;
    if (sets > 1) shared.places.index_of_ranks.push_back(std::move(tokens.index));
  }
  shared.places.first_seen = first_seen_at(shared.places.index, places);
  return shared;
}

}  // namespace lockstep::parallel
