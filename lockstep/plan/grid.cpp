#include "lockstep/plan/drawing.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/plan/boxes.h"

namespace lockstep::plan {
namespace {

std::string label(const Box& box, const program::Pipeline& pipeline) {
  if (box.kind == BoxKind::kUpdate) return std::string(letter_of(box.kind));
  const std::string text = cat(letter_of(box.kind), box.microbatch);
  if (pipeline.virtual_stages == 1) return text;
  return cat(text, static_cast<char>('a' + box.stage / pipeline.ranks % 26));
}

// "." where nothing runs, "--" where something goes on.
std::vector<std::string> cells(const std::vector<Box>& boxes, const program::Pipeline& pipeline, double unit) {
  std::vector<std::string> row;
  for (const Box& box : boxes) {
    if (!box.computes()) continue;
    const auto begin = static_cast<size_t>(std::max(0.0, std::round(box.start / unit)));
    const auto end = static_cast<size_t>(std::max(0.0, std::round(box.end / unit)));
    if (row.size() < std::max(end, begin + 1)) row.resize(std::max(end, begin + 1), ".");
    if (row[begin] == "." || row[begin] == "--") row[begin] = label(box, pipeline);
    for (size_t i = begin + 1; i < end; ++i) row[i] = "--";
  }
  return row;
}

}  // namespace

std::string grid_text(const program::Program& program, const program::Layout& layout, const Spans& spans,
                      const GridOptions& options) {
  const std::vector<std::vector<Box>> drawn = boxes(program, layout, spans, {.gap = options.unit * 1e-6});
  std::vector<int> ranks = options.ranks;
  for (int rank = 0; options.ranks.empty() && rank < static_cast<int>(drawn.size()); ++rank) ranks.push_back(rank);
  std::vector<std::vector<std::string>> rows;
  size_t columns = 0, width = 2, margin = std::string_view("time").size();
  for (const int rank : ranks) {
    rows.push_back(cells(drawn.at(static_cast<size_t>(rank)), layout.pipeline, options.unit));
    columns = std::max(columns, rows.back().size());
    for (const std::string& cell : rows.back()) width = std::max(width, cell.size());
    margin = std::max(margin, cat("rank ", rank).size());
  }
  margin += 2;
  const size_t room = static_cast<size_t>(std::max(options.width, 40)) - margin;
  const size_t at_once = std::max<size_t>(5, room / (width + 1) / 5 * 5);
  std::string text;
  const auto line = [&](const std::string& name, size_t begin, const auto& cell) {
    std::string row = pad_right(name, margin);
    for (size_t i = begin; i < std::min(columns, begin + at_once); ++i) row += pad_right(cell(i), width + 1);
    text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  };
  for (size_t begin = 0; begin < columns; begin += at_once) {
    if (begin > 0) text += "\n";
    line("time", begin, [&](size_t i) { return i % 5 == 0 ? cat(i) : std::string(); });
    for (size_t row = 0; row < rows.size(); ++row)
      line(cat("rank ", ranks[row]), begin, [&](size_t i) { return i < rows[row].size() ? rows[row][i] : std::string("."); });
  }
  return text;
}

}  // namespace lockstep::plan
