// The boxes of a step as few characters: neighbours of one kind that no eye tells apart as one, and of long pipelines some stages.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/plan_html_parts.h"

namespace lockstep::plan {
namespace {

constexpr size_t kMostBoxes = 9000;
constexpr double kTicks = 200000;  // of a step

using Row = std::vector<TimedBox>;
using Rows = std::map<std::pair<int, int>, Row>;  // by stage and lane

constexpr std::string_view kLanes = "ctn";

Rows rows_of(const StepEstimate& estimate) {
  Rows rows;
  for (const TimedBox& box : estimate.boxes) {
    const size_t lane = std::min(kLanes.find(box.lane), kLanes.size() - 1);
    rows[{box.stage, static_cast<int>(lane)}].push_back(box);
  }
  for (auto& [key, row] : rows) std::ranges::stable_sort(row, {}, &TimedBox::start);
  return rows;
}

size_t count(const Rows& rows) {
  size_t sum = 0;
  for (const auto& [key, row] : rows) sum += row.size();
  return sum;
}

// "F12" and "F13" are of one kind.
std::string_view kind_of(const TimedBox& box) {
  const std::string_view label = box.label;
  return label.substr(0, std::min(label.find_first_of("0123456789 "), label.size()));
}

// Neighbours with less than `gap` between them: of one label, or of one kind where both are shorter than that.
Row merged(const Row& row, double gap) {
  Row result;
  for (const TimedBox& box : row) {
    if (!result.empty()) {
      TimedBox& before = result.back();
      const bool near = box.start - before.end <= gap, both_short = box.end - box.start < gap && before.end - before.start < gap;
      if (near && (box.label == before.label || (both_short && kind_of(box) == kind_of(before)))) {
        before.end = std::max(before.end, box.end);
        before.label = box.label == before.label ? before.label : std::string(kind_of(box));
        continue;
      }
    }
    result.push_back(box);
  }
  return result;
}

void merge_all(Rows& rows, double gap) {
  for (auto& [key, row] : rows) row = merged(row, gap);
}

// So many stages, evenly from the first to the last.
void keep_stages(Rows& rows, const std::vector<int>& stages, size_t keep) {
  std::vector<int> kept;
  for (size_t i = 0; i < keep; ++i) kept.push_back(stages[keep == 1 ? 0 : i * (stages.size() - 1) / (keep - 1)]);
  std::erase_if(rows, [&](const auto& row) { return !std::ranges::binary_search(kept, row.first.first); });
}

void shorten(Rows& rows, double step) {
  merge_all(rows, step / 20000);
  for (const double gap : {step / 4000, step / 2000, step / 1000})
    if (count(rows) > kMostBoxes) merge_all(rows, gap);
  std::vector<int> stages;
  for (const auto& [key, row] : rows)
    if (stages.empty() || stages.back() != key.first) stages.push_back(key.first);
  const Rows all = rows;
  for (size_t keep = stages.size(); count(rows) > kMostBoxes && keep > 1;) {
    rows = all;
    keep_stages(rows, stages, keep /= 2);
  }
  // One stage of very many microbatches.
  for (double gap = step / 500; count(rows) > kMostBoxes && gap < step; gap *= 2) merge_all(rows, gap);
}

// "label,gap,length;" of each; a gap is negative where transfers overlap.
std::string boxes_text(const Row& row, double step, std::map<std::string, int>& labels) {
  const auto ticks = [&](double seconds) { return std::llround(seconds / step * kTicks); };
  std::string text;
  long long end = 0;
  for (const TimedBox& box : row) {
    const int label = labels.try_emplace(box.label, static_cast<int>(labels.size())).first->second;
    const long long start = ticks(box.start), stop = std::max(start, ticks(box.end));
    const auto shown = [](long long value) { return value == 0 ? std::string() : std::to_string(value); };
    text += cat(label, ",", shown(start - end), ",", shown(stop - start), ";");
    end = stop;
  }
  if (!text.empty()) text.pop_back();
  return text;
}

}  // namespace

std::string gantt_json(const StepEstimate& estimate) {
  double step = estimate.seconds;
  for (const TimedBox& box : estimate.boxes) step = std::max(step, box.end);
  if (!(step > 0)) step = 1;
  Rows rows = rows_of(estimate);
  shorten(rows, step);
  OrderedJson json = {{"step", step}, {"ticks", kTicks}, {"stages", estimate.stages.size()}, {"labels", OrderedJson::array()}, {"rows",
                                                                                                                                OrderedJson::array()}};
  std::map<std::string, int> labels;
  for (const auto& [key, row] : rows)
    json["rows"].push_back({{"stage", key.first}, {"lane", std::string(1, kLanes[static_cast<size_t>(key.second)])}, {"boxes", boxes_text(row, step,
                                                                                                                                          labels)}});
  std::vector<std::string> names(labels.size());
  for (const auto& [label, index] : labels) names[static_cast<size_t>(index)] = label;
  json["labels"] = names;
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace lockstep::plan
