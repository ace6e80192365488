// model.dense_layers: a number of blocks, or a list of them.
#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/config/values.h"

namespace lockstep::config {
namespace {

constexpr int64_t kMostBlocks = 1 << 16;

Complaint unreadable(const std::string& key, const Value& value, const std::string& why) {
  return {.code = "LS1046",
          .what = cat(key, " = ", print_value(value), why),
          .hint = "write 2 for the first two blocks, or [0, 3] for these"};
}

// The elements of a list as integers: those of an override are words.
std::optional<std::vector<int64_t>> integers_of(const Value& value) {
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) return *integers;
  const auto* words = std::get_if<std::vector<std::string>>(&value);
  if (!words) return std::nullopt;
  std::vector<int64_t> integers;
  for (const std::string& word : *words) {
    const Value item = parse_scalar(word);
    const auto* integer = std::get_if<int64_t>(&item);
    if (!integer) return std::nullopt;
    integers.push_back(*integer);
  }
  return integers;
}

}  // namespace

std::string print_value(const DenseLayers& value) {
  if (value.first) return print_value(*value.first);
  return print_value(std::vector<int64_t>(value.list.begin(), value.list.end()));
}

std::string type_name(const DenseLayers&, const Rule&) { return "integer >= 0, or a list of integers"; }

Verdict read_value(const std::string& key, const Value& value, const Rule&, DenseLayers& out) {
  DenseLayers layers;
  const auto* first = std::get_if<int64_t>(&value);
  const std::optional<std::vector<int64_t>> listed = first ? std::vector{*first} : integers_of(value);
  if (!listed) return unreadable(key, value, " is no number of blocks and no list of them");
  for (const int64_t block : *listed) {
    if (block < 0 || block > kMostBlocks) return unreadable(key, value, cat(": ", block, " is not within 0 to ", kMostBlocks));
    layers.list.push_back(static_cast<int>(block));
  }
  if (first) layers = {.first = static_cast<int>(*first)};
  std::sort(layers.list.begin(), layers.list.end());
  if (std::adjacent_find(layers.list.begin(), layers.list.end()) != layers.list.end())
    return unreadable(key, value, " names a block twice");
  out = std::move(layers);
  return std::nullopt;
}

}  // namespace lockstep::config
