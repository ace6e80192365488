#include "lockstep/comm/exchange.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

constexpr size_t kWord = sizeof(int64_t);

at::Tensor zeros(int64_t count) { return at::zeros({count}, at::TensorOptions().dtype(at::kLong)); }

// [size() * mine.numel()], in rank order.
at::Tensor gather(Communicator& group, const program::CallId& id, const at::Tensor& mine) {
  const at::Tensor all = zeros(group.size() * mine.numel());
  group.all_gather(mine, all, {.id = id}).wait();
  return group.size() == 1 ? mine : all;
}

}  // namespace

std::vector<std::vector<int64_t>> gather_numbers(Communicator& group, const program::CallId& id,
                                                 const std::vector<int64_t>& mine) {
  if (mine.empty()) return std::vector<std::vector<int64_t>>(static_cast<size_t>(group.size()));
  const at::Tensor all = gather(group, id, at::tensor(mine, at::kLong));
  std::vector<std::vector<int64_t>> numbers;
  const auto* from = all.const_data_ptr<int64_t>();
  for (int rank = 0; rank < group.size(); ++rank, from += mine.size()) numbers.emplace_back(from, from + mine.size());
  return numbers;
}

std::vector<std::string> gather_texts(Communicator& group, const program::CallId& id, const std::string& mine) {
  std::vector<int64_t> sizes;
  for (const auto& size : gather_numbers(group, id.with(program::CallPhase::kSize), {static_cast<int64_t>(mine.size())})) sizes.push_back(size[0]);
  const auto words = static_cast<int64_t>((static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end())) + kWord - 1) / kWord);
  if (words == 0) return std::vector<std::string>(sizes.size());
  const at::Tensor buffer = zeros(words);
  std::memcpy(buffer.mutable_data_ptr(), mine.data(), mine.size());
  const at::Tensor all = gather(group, id, buffer);
  std::vector<std::string> texts;
  const auto* from = static_cast<const char*>(all.const_data_ptr());
  for (const int64_t size : sizes) {
    texts.emplace_back(from, static_cast<size_t>(size));
    from += static_cast<size_t>(words) * kWord;
  }
  return texts;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    parts.push_back(last == i ? cat(ranks[i]) : cat(ranks[i], "-", ranks[last]));
    i = last + 1;
  }
  return cat(ranks.size() == 1 ? "rank " : "ranks ", join(parts, ","));
}

}  // namespace lockstep::comm
