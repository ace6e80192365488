#include "lockstep/parallel/context/window_ends.h"

#include <utility>

namespace lockstep::parallel {

using program::CallPhase;

std::vector<WindowEnds::End> WindowEnds::ends(const QueriesHere& queries) const {
  const int size = group_.over(over_).size(), rank = group_.over(over_).rank();
  const int pieces = group_.shard().pieces();
  std::vector<End> ends;
  for (int piece = 0; piece < pieces; ++piece) {
    const bool to_next = piece == 0;
    const int64_t first = (piece + 1) * (queries.tokens() / pieces) - tokens_;
    ends.push_back({.first = first,
                    .to_next = to_next,
                    .came = {.rank = (rank + (to_next ? size - 1 : 1)) % size, .first = first, .count = tokens_}});
  }
  return ends;
}

at::Tensor WindowEnds::Sent::join() {
  const at::Tensor came = std::exchange(coming, {})();
  tensor.reset();
  return came;
}

WindowEnds::Sent WindowEnds::send(const at::Tensor& tensor, bool to_next, CallPhase phase) const {
  return {.tensor = tensor,
          .coming = to_next ? group_.shift(tensor, calls_.with(phase), over_) : group_.shift_back(tensor, calls_.with(phase), over_)};
}

std::vector<WindowEnds::Sent> WindowEnds::send_own(const std::vector<End>& ends, const KeyBlocks& blocks, CallPhase phase) const {
  std::vector<Sent> sent;
  for (const End& end : ends) sent.push_back(send(blocks.own(end.first, tokens_), end.to_next, phase));
  return sent;
}

nn::SeenSums WindowEnds::forward(const QueriesHere& queries, KeyBlocks& blocks) const {
  const std::vector<End> ends = this->ends(queries);
  std::vector<Sent> sent = send_own(ends, blocks, CallPhase::kForward);
  nn::SeenSums seen;
  const int rank = group_.over(over_).rank();
  queries.attend(queries.all_of(rank), blocks.own(0, queries.tokens()), blocks, seen);
  for (size_t i = 0; i < ends.size(); ++i) {
    const at::Tensor block = sent[i].join();
    queries.attend(ends[i].came, block, blocks, seen);
  }
  return seen;
}

at::Tensor WindowEnds::backward(const QueriesHere& queries, KeyBlocks& blocks, const QueriesHere::Backward& pass) const {
  const std::vector<End> ends = this->ends(queries);
  std::vector<Sent> sent = send_own(ends, blocks, CallPhase::kGather);
  at::Tensor sum;
  {
    const at::Tensor own = blocks.own(0, queries.tokens());
    sum = queries.attend_backward(queries.all_of(group_.over(over_).rank()), own, blocks, pass, zeros_fp32(own.sizes(), own));
  }
  std::vector<Sent> home;  // the gradients of the ends that went out
  for (size_t i = 0; i < ends.size(); ++i) {
    const at::Tensor block = sent[i].join();
    home.push_back(send(queries.attend_backward(ends[i].came, block, blocks, pass, zeros_fp32(block.sizes(), block)), !ends[i].to_next,
                        CallPhase::kBackward));
  }
  for (size_t i = 0; i < ends.size(); ++i) blocks.add_rows(sum, home[i].join(), ends[i].first, tokens_);
  return sum;
}

}  // namespace lockstep::parallel
