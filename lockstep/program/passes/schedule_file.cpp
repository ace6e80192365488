#include "lockstep/program/passes/schedule_file.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "lockstep/base/text.h"

namespace lockstep::program {
namespace {

constexpr std::string_view kPair = "OVERLAP_F_B";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kAround = " \t\r\"";
  const size_t begin = text.find_first_not_of(kAround);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kAround) - begin + 1);
}

// The digits that the text begins with, taken off it.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || text.starts_with('-')) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

std::optional<ActionKind> computing_kind(std::string_view name) {
  if (name == "F") return ActionKind::kForward;
  if (name == "B" || name == "FULL_BACKWARD") return ActionKind::kBackward;
  if (name == "I") return ActionKind::kBackwardInput;
  if (name == "W") return ActionKind::kBackwardWeight;
  return std::nullopt;
}

bool is_made_by_passes(std::string_view name) {
  constexpr std::string_view kNames[] = {"SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

class Reader {
 public:
  Grid read(const std::string& text) {
    std::vector<std::string> lines = split(text, '\n');
    while (!lines.empty() && trimmed(lines.back()).empty()) lines.pop_back();
    for (const std::string& line : lines) {
      ++at_.row;
      at_.column = 0;
      grid_.ranks.emplace_back();
      grid_.cells.emplace_back();
      for (const std::string& cell : split(line, ',')) {
        ++at_.column;
        add_cell(trimmed(cell));
      }
    }
    return std::move(grid_);
  }

 private:
  void add_cell(std::string_view cell) {
    if (cell.empty()) return;
    const size_t closed = cell.find(')');
    if (!cell.starts_with('(')) {
      if (!add_action(cell)) refuse(cell);
    } else if (closed == std::string_view::npos || cell.substr(closed + 1) != kPair) {
      refuse(cell);
    } else {
      for (const std::string& part : split(cell.substr(1, closed - 1), ';'))
        if (!add_action(trimmed(part))) return refuse(cell);
    }
  }
  void refuse(std::string_view cell) {
    grid_.problems.push_back(cat("row ", at_.row, ", column ", at_.column, ": \"", cell, "\" is not an action"));
  }

  bool add_action(std::string_view text) {
    const std::optional<int> stage = take_number(text);
    if (!stage) return false;
    const size_t digits = std::min(text.find_first_of("0123456789"), text.size());
    const std::string_view name = text.substr(0, digits);
    if (is_made_by_passes(name)) return true;
    text.remove_prefix(digits);
    const std::optional<ActionKind> kind = computing_kind(name);
    const std::optional<int> microbatch = take_number(text);
    // A list of a million stages would be asked for by a slip of the keyboard.
    constexpr int kMost = 1 << 20;
    if (!kind || !microbatch || !text.empty() || *stage >= kMost || *microbatch >= kMost) return false;
    grid_.ranks.back().push_back({.kind = *kind, .stage = *stage, .microbatch = *microbatch});
    grid_.cells.back().push_back(at_);
    grid_.stages = std::max(grid_.stages, *stage + 1);
    grid_.microbatches = std::max(grid_.microbatches, *microbatch + 1);
    return true;
  }

  Grid grid_;
  GridCell at_;
};

}  // namespace

Grid read_grid(const std::string& text) {
  return Reader().read(text);
}

bool Grid::in_v() const {
  const int rows = static_cast<int>(ranks.size());
  return rows > 1 && std::ranges::any_of(ranks.back(), [&](const Action& action) { return action.stage == rows; });
}

int Grid::virtual_stages() const {
  const int rows = static_cast<int>(ranks.size());
  return rows > 0 && stages % rows == 0 ? stages / rows : 0;
}

}  // namespace lockstep::program
