#include <algorithm>
#include <cmath>
#include <functional>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/fields.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/plan_text.h"
#include "lockstep/plan/search/candidate.h"
#include "lockstep/program/pipeline.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {
namespace {

using program::Row;

constexpr size_t kMostMisses = 5, kMostConstants = 8;
constexpr double kSmall = 0.002;  // of a step: constants that change less stand in one line

struct Column {
  const char* head;
  std::function<std::string(const Found&)> text;
  bool always = false;  // also where it says 1 in all rows
};

// `scale`: seconds of a step that all of them are told beside.
std::vector<Column> columns(const Cluster& cluster, double scale) {
  const auto whole = [](int Candidate::*field) { return [field](const Found& found) { return cat(found.candidate.*field); }; };
  std::vector<Column> all = {
      {"tp", whole(&Candidate::tp), true},
      {"pp", whole(&Candidate::pp), true},
      {"schedule", [](const Found& found) { return found.candidate.pp > 1 ? program::schedule_name(found.candidate.schedule) : "1"; }},
      {"stages/rank", whole(&Candidate::virtual_stages)},
      {"cp", whole(&Candidate::cp)},
      {"ep", whole(&Candidate::ep)},
      {"etp", whole(&Candidate::etp)},
      {"dp", whole(&Candidate::dp), true},
      {"zero", whole(&Candidate::zero), true},
      {"shard groups", whole(&Candidate::dp_replicate)},
      {"micro-batch", whole(&Candidate::micro_batch), true},
      {"recompute", [](const Found& found) { return config::name_of(found.candidate.recompute); }, true},
      {"offload", [](const Found& found) { return found.candidate.offload_optimizer ? "optimizer" : "1"; }},
      {"devices", [](const Found& found) { return cat(devices_of(found.candidate)); }, true},
      {"step", [scale](const Found& found) { return seconds_text(found.estimate.seconds, scale); }, true},
      {"MFU", [](const Found& found) { return tenths_text(found.estimate.mfu_causal); }, true},
      {"bubble", [](const Found& found) { return tenths_text(found.estimate.bubble_share); }, true},
      {"memory", [](const Found& found) { return format_bytes(found.estimate.most_reserved()); }, true}};
  if (cluster.price > 0)
    all.push_back({"a step", [&cluster](const Found& found) { return money_text(step_money(cluster, devices_of(found.candidate),
                                                                                           found.estimate.seconds)); }, true});
  return all;
}

}  // namespace

std::string count_text(int64_t count) {
  std::string text = cat(count);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

int devices_of(const Candidate& candidate) { return static_cast<int>(ranks_of(candidate)); }

std::string layouts_text(const std::vector<Found>& layouts, const Cluster& cluster, bool why) {
  std::vector<Row> rows(layouts.size() + 1);
  rows[0].emplace_back("");
  for (size_t i = 0; i < layouts.size(); ++i) rows[i + 1].push_back(cat(i + 1));
  for (const Column& column : columns(cluster, layouts.empty() ? 1 : layouts.front().estimate.seconds)) {
    const bool said = column.always || std::ranges::any_of(layouts, [&](const Found& found) { return column.text(found) != "1"; });
    if (!said) continue;
    rows[0].emplace_back(column.head);
    for (size_t i = 0; i < layouts.size(); ++i) rows[i + 1].push_back(column.text(layouts[i]));
  }
  std::string text = program::table(rows, 0, rows[0].size());
  for (size_t i = 0; why && i < layouts.size(); ++i)
    if (!layouts[i].why.empty()) text += cat(i + 1, "  ", layouts[i].why, "\n");
  return text;
}

std::string no_spare_text(const SearchResult& result) {
  return result.asked_spare > result.spare ? cat("No layout was found that leaves ", tenths_text(result.asked_spare), " of a device's memory.") : "";
}

std::string rejected_text(const SearchResult& result) {
  std::vector<std::pair<int64_t, Reject>> counts;
  for (const auto& [reason, count] : result.rejected) counts.emplace_back(count, reason);
  std::ranges::stable_sort(counts, [](auto& a, auto& b) { return a.first > b.first; });
  std::vector<Row> rows = {{count_text(result.candidates), "looked at"}};
  const std::string left = result.spare > 0 ? cat(", with ", tenths_text(result.spare), " left") : "";
  for (const auto& [count, reason] : counts)
    rows.push_back({count_text(count), cat(reject_text(reason), reason == Reject::kMemory ? left : "")});
  std::string text = program::table(rows, 0, 1);
  const size_t shown = std::min(kMostMisses, result.misses.size());
  if (shown > 0) text += "nearest misses\n";
  for (size_t i = 0; i < shown; ++i) text += cat("  ", describe(result.misses[i].candidate), ": ", result.misses[i].text, "\n");
  return text;
}

std::string sensitivity_text(const SearchResult& result) {
  std::vector<Sensitivity> all = result.sensitivity;
  const auto size = [](const Sensitivity& one) { return std::max(std::abs(one.minus), std::abs(one.plus)); };
  std::ranges::stable_sort(all, [&](auto& a, auto& b) { return size(a) > size(b); });
  std::vector<Row> rows = {{"constant", "10 % less", "10 % more", "the best layout"}};
  size_t small = 0;
  for (const Sensitivity& one : all) {
    const bool shown = one.order_changes || (rows.size() <= kMostConstants && size(one) >= kSmall);
    if (shown) rows.push_back({one.constant, change_text(one.minus), change_text(one.plus), one.order_changes ? "is another" : "stays"});
    small += shown ? 0 : 1;
  }
  std::string text = rows.size() > 1 ? program::table(rows, 1, 2) : "";
  if (small > 0) text += cat(small, small == 1 ? " further constant changes" : " further constants change", " it less\n");
  return text;
}

}  // namespace lockstep::plan
