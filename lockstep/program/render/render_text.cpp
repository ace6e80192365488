#include "lockstep/program/render/render_text.h"

#include <algorithm>
#include <cstdio>

#include "lockstep/arch/branch_kind.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::program {

std::string table(const std::vector<Row>& rows, size_t first_number, size_t numbers) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool number = i >= first_number && i < first_number + numbers;
      line += (i == 0 ? "" : "  ") + (number ? pad_left(row[i], widths[i]) : pad_right(row[i], widths[i]));
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string bytes_text(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

std::string decimal_bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  for (; bytes >= 999.5 && unit + 1 < std::size(units); ++unit) bytes /= 1000;
  char text[32];
  std::snprintf(text, sizeof text,
                unit == 0 || bytes >= 100 ? "%.0f %s"
                : bytes >= 10             ? "%.1f %s"
                                          : "%.2f %s",
                bytes, units[unit]);
  return text;
}

std::string decimal_bytes(int64_t bytes) {
  return decimal_bytes(static_cast<double>(bytes));
}

std::string rank_list(const std::vector<int>& ranks) {
  const int first = ranks.front(), last = ranks.back();
  if (ranks.size() > 2 && last - first + 1 == static_cast<int>(ranks.size())) return cat(first, "..", last);
  constexpr size_t kMost = 4;
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min(kMost, ranks.size()); ++i) texts.push_back(cat(ranks[i]));
  if (ranks.size() > kMost) texts.push_back(cat("... ", last));
  return join(texts, ", ");
}

std::vector<std::string> stretches(const std::vector<int>& numbers, const std::function<std::string(int, int)>& text) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    texts.push_back(text(numbers[i], numbers[end - 1]));
    i = end;
  }
  return texts;
}

std::string ranges_text(const std::vector<int>& numbers) {
  std::vector<std::string> texts =
      stretches(numbers, [](int first, int last) { return first == last ? cat(first) : cat(first, "..", last); });
  constexpr size_t kMostGroups = 8;
  if (texts.size() > kMostGroups) {
    const std::string last = texts.back();
    texts.resize(kMostGroups);
    texts.push_back("... " + last);
  }
  return join(texts, ", ");
}

std::vector<int> blocks_shown(const arch::ModelConfig& model) {
  return arch::first_blocks(model);
}

std::string block_word(const arch::ModelConfig& model, int layer) {
  std::vector<std::string> words;
  std::string feed_forward;
  for (const arch::Branch& branch : arch::block_branches(model, layer)) {
    if (branch.kind == arch::kExperts) feed_forward = "with experts";
    if (model.blocks.size() < 2 || branch.kind == arch::kExperts || branch.kind == "mlp") continue;
    const int64_t window = model.window_of(branch);
    if (branch.kind == arch::kStateSpace)
      words.emplace_back("state space");
    else
      words.push_back(cat("attention", window > 0 ? cat(", window ", window) : "", branch.rotation == arch::Rotation::kNone ? ", no rotation" : ""));
  }
  if (model.has_experts()) words.push_back(feed_forward.empty() ? "without experts" : feed_forward);
  return words.empty() ? "MLP" : join(words, ", ");
}

}  // namespace lockstep::program
