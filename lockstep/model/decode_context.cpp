#include "lockstep/model/decode_context.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/data/token_split.h"

namespace lockstep::model {
namespace {

// One row of places [T] as those of all `batch` sequences.
template <typename To>
at::Tensor for_all(const std::vector<To>& row, int64_t batch) {
  const at::Tensor all = at::empty({batch, static_cast<int64_t>(row.size())}, c10::CppTypeToScalarType<To>::value);
  for (int64_t b = 0; b < batch; ++b) std::ranges::copy(row, all.data_ptr<To>() + b * all.size(1));
  return all;
}

// Where the rows of places stand. Filling behind the end stands anywhere: nothing sees it.
std::vector<nn::PositionRun> runs_of(const std::vector<int32_t>& places, int64_t length) {
  std::vector<nn::PositionRun> runs;
  for (size_t i = 0; i < places.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i), position = places[i] < length ? places[i] : places[i] - length;
    if (!runs.empty() && position == runs.back().position + runs.back().count)
      ++runs.back().count;
    else
      runs.push_back({.row = row, .count = 1, .position = position});
  }
  return runs;
}

nn::TokenPlaces token_places(const std::vector<std::vector<int32_t>>& split, int rank, int64_t length, int64_t batch) {
  nn::TokenPlaces places{.length = length, .positions = {}, .index = {}, .first_seen = {}, .rank = rank};
  for (const std::vector<int32_t>& of_rank : split) places.index_of_ranks.push_back(for_all(of_rank, batch));
  std::vector<int32_t> first_seen;
  std::vector<int64_t> positions;
  for (const int32_t place : split[static_cast<size_t>(rank)]) {
    first_seen.push_back(place < length ? 0 : place);
    positions.push_back(place < length ? place : place - length);
  }
  places.index = places.index_of_ranks[static_cast<size_t>(rank)];
  places.first_seen = for_all(first_seen, batch);
  places.first_seen_of_places = for_all(std::vector<int32_t>(static_cast<size_t>(length), 0), batch);
  places.positions = for_all(positions, batch);
  return places;
}

ContextStep cut_step(const std::vector<TokenOwners*>& slots, int64_t tokens, const parallel::ContextGroup& group, at::Device device) {
  const auto split = data::split_tokens(tokens, {.ranks = group.size(), .split = config::ContextSplit::kZigzag}, std::vector<int32_t>{0});
  const std::vector<int32_t>& here = split.at(static_cast<size_t>(group.rank()));
  std::vector<int> owners(static_cast<size_t>(tokens), -1);
  for (size_t rank = 0; rank < split.size(); ++rank)
    for (const int32_t place : split[rank])
      if (place < tokens) owners[static_cast<size_t>(place)] = static_cast<int>(rank);
  for (TokenOwners* slot : slots)
    for (const int owner : owners) slot->add(owner);

  nn::CachePart part{.runs = runs_of(here, tokens)};
  for (size_t row = 0; row < here.size() && here[row] < tokens; ++row) part.kept.push_back(static_cast<int64_t>(row));
  ContextStep step;
  const int64_t batch = static_cast<int64_t>(slots.size());
  step.places = std::make_unique<nn::TokenPlaces>(token_places(split, group.rank(), tokens, batch));
  step.places->positions = step.places->positions.to(device);
  part.places = step.places.get();
  step.last_rank = owners.back();
  if (group.rank() == step.last_rank) step.last_row = static_cast<int64_t>(part.kept.size()) - 1;
  step.parts.assign(slots.size(), part);
  return step;
}

ContextStep whole_step(const std::vector<TokenOwners*>& slots, int64_t tokens, const parallel::ContextGroup& group) {
  ContextStep step;
  for (TokenOwners* slot : slots) {
    nn::CachePart part{.held = slot->held(group.rank()),
                       .here = &slot->places(group.rank()),
                       .runs = {{.row = 0, .count = tokens, .position = slot->length()}}};
    for (int64_t t = 0; t < tokens; ++t)
      if (slot->add_to_emptiest() == group.rank()) part.kept.push_back(t);
    step.parts.push_back(std::move(part));
  }
  step.last_row = tokens - 1;
  return step;
}

// By log-sum-exp, in the order of ranks. of_ranks [n, B, T, H, V + 1]: outputs, and the log-sum-exp of their scores.
at::Tensor merged(const at::Tensor& of_ranks) {
  const int64_t width = of_ranks.size(4) - 1;
  const at::Tensor logsumexp = of_ranks.narrow(4, width, 1);
  const at::Tensor weights = logsumexp.sub(std::get<0>(logsumexp.max(0))).exp_();  // 0 where a rank saw nothing
  at::Tensor sum = at::zeros_like(of_ranks[0].narrow(3, 0, width), at::MemoryFormat::Contiguous), total = at::zeros_like(weights[0]);
  for (int64_t rank = 0; rank < of_ranks.size(0); ++rank) {
    sum.addcmul_(of_ranks[rank].narrow(3, 0, width), weights[rank]);
    total.add_(weights[rank]);
  }
  return sum.div_(total).flatten(2, 3);
}

class RankedContext : public nn::DecodeContext {
 public:
  RankedContext(parallel::ContextGroup& group, const program::CallId& block, const std::string& part)
      : group_(group), merge_(block.of_part(cat(part, ".merge")).with(program::CallPhase::kForward)),
        prompts_(parallel::make_context_attention(group, block, part)) {}

  nn::ContextAttention& prompts() override { return *prompts_; }

  at::Tensor merge(const nn::SeenSums& here) override {
    const at::Tensor own = at::cat({here.out, here.logsumexp.transpose(1, 2).unsqueeze(3)}, 3);
    return merged(group_.gather(own, merge_)());
  }

 private:
  parallel::ContextGroup& group_;
  const program::CallId merge_;
  const std::unique_ptr<nn::ContextAttention> prompts_;
};

}  // namespace

void TokenOwners::truncate(int64_t length) {
  for (std::vector<int32_t>& places : places_)
    while (!places.empty() && places.back() >= length) places.pop_back();
  length_ = std::min(length_, length);
}

void TokenOwners::add(int rank) {
  places_.at(static_cast<size_t>(rank)).push_back(static_cast<int32_t>(length_++));
}

int TokenOwners::add_to_emptiest() {
  const int rank = static_cast<int>(std::ranges::min_element(places_, {}, &std::vector<int32_t>::size) - places_.begin());
  add(rank);
  return rank;
}

ContextStep context_step(const std::vector<TokenOwners*>& slots, int64_t tokens, const parallel::ContextGroup& group, at::Device device) {
  const bool empty = std::ranges::all_of(slots, [](const TokenOwners* slot) { return slot->length() == 0; });
  return empty && tokens >= 2 * int64_t{group.size()} ? cut_step(slots, tokens, group, device) : whole_step(slots, tokens, group);
}

at::Tensor rows_of_rank(const at::Tensor& x, int rank, parallel::ContextGroup& group) {
  const program::CallId call{.purpose = program::Purpose::kLayer, .owner = program::Owner::kHead};
  return group.gather(x.contiguous(), call.of_part("last").with(program::CallPhase::kForward))()[rank];
}

std::shared_ptr<nn::DecodeContext> make_decode_context(parallel::ContextGroup& group, const program::CallId& block, const std::string& part) {
  return std::make_shared<RankedContext>(group, block, part);
}

}  // namespace lockstep::model
