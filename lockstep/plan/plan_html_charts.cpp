// The candidates of a search as points and as lines over their choices.
#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/findings.h"
#include "lockstep/plan/plan_html_parts.h"
#include "lockstep/plan/plan_text.h"

namespace lockstep::plan {
namespace {

constexpr double kWidth = 1180;

// As predicted; of the first tier where it was not.
double memory_of(const Found& found) { return found.estimate.stages.empty() ? found.quick.memory : found.estimate.most_reserved(); }

bool is_best(const PlanPage& page, size_t index) { return index < page.search.best.size(); }

std::string told(const PlanPage& page, const Found& found, size_t index) {
  std::string text = cat(is_best(page, index) ? cat("number ", index + 1, ": ") : "", describe(found.candidate), ": ",
                         seconds_text(found.estimate.seconds), ", ",
                         format_bytes(memory_of(found)), " of the worst stage, MFU ", tenths_text(found.estimate.mfu_causal), ", ",
                         devices_of(found.candidate), " devices");
  const double money = step_money(page.cluster, devices_of(found.candidate), found.estimate.seconds);
  if (money > 0 && found.estimate.tokens > 0) text += cat(", ", money_text(money / found.estimate.tokens * 1e9), " for 1e9 tokens");
  return text;
}

// An axis from below the least to above the largest; by factors where `logarithmic`.
struct Scale {
  double low = 0, high = 1, from = 0, to = 1;  // values; pixels
  bool logarithmic = false;
  double place(double value) const { return logarithmic ? std::log(value) : value; }
  double at(double value) const { return from + (high > low ? (place(value) - place(low)) / (place(high) - place(low)) : 0.5) * (to - from); }

  // Round values, the least first.
  std::vector<double> marks(int parts) const {
    std::vector<double> found;
    if (!logarithmic) {
      const double step = round_step(high - low, parts);
      for (double mark = std::ceil(low / step) * step; mark <= high; mark += step) found.push_back(mark);
      return found;
    }
    // As many in each decade as leave room between them.
    for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high; decade *= 10)
      for (const double digit : {1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0})
        if (const double mark = digit * decade; mark >= low && mark <= high && (found.empty() || at(mark) - at(found.back()) > 70)) found.push_back(mark);
    return found;
  }
};
Scale scale_of(double least, double most, double from, double to) {
  const double margin = std::max((most - least) * 0.06, std::abs(most) * 0.005);
  return {std::max(0.0, least - margin), most + margin, from, to};
}

std::string memory_text(double value, double) { return format_bytes(value); }
std::string percents(double value, double) { return tenths_text(value); }

// Members of the front: nobody is better in one and as good in the other.
std::vector<size_t> front(const std::vector<const Found*>& found) {
  std::vector<size_t> order;
  for (size_t i = 0; i < found.size(); ++i) order.push_back(i);
  std::ranges::stable_sort(order, {}, [&](size_t i) { return std::pair(found[i]->estimate.seconds, memory_of(*found[i])); });
  std::vector<size_t> members;
  for (const size_t i : order)
    if (members.empty() || memory_of(*found[i]) < memory_of(*found[members.back()])) members.push_back(i);
  return members;
}

// The choices of a candidate: name, and what is chosen as number (or place in a list of words) and as text.
struct Choice {
  std::string_view name;
  double (*number)(const Candidate&);
  std::string (*text)(const Candidate&);
};
template <auto kField>
constexpr Choice of_number(std::string_view name) {
  return {name, [](const Candidate& candidate) { return static_cast<double>(candidate.*kField); },
          [](const Candidate& candidate) { return cat(candidate.*kField); }};
}
template <auto kField>
constexpr Choice of_word(std::string_view name) {
  return {name, [](const Candidate& candidate) { return static_cast<double>(candidate.*kField); },
          [](const Candidate& candidate) { return config::choices_of(candidate.*kField).at(static_cast<size_t>(candidate.*kField)); }};
}
template <auto kField>
constexpr Choice of_flag(std::string_view name) {
  return {name, [](const Candidate& candidate) { return static_cast<double>(candidate.*kField); },
          [](const Candidate& candidate) { return std::string(candidate.*kField ? "yes" : "no"); }};
}
constexpr std::array kChoices = {of_number<&Candidate::tp>("tp"),
                                 of_flag<&Candidate::sequence_parallel>("sequence parallel"),
                                 of_number<&Candidate::cp>("cp"),
                                 of_number<&Candidate::pp>("pp"),
                                 of_word<&Candidate::schedule>("schedule"),
                                 of_number<&Candidate::virtual_stages>("virtual stages"),
                                 of_number<&Candidate::ep>("ep"),
                                 of_number<&Candidate::etp>("etp"),
                                 of_number<&Candidate::dp>("dp"),
                                 Choice{"devices", [](const Candidate& candidate) { return static_cast<double>(devices_of(candidate)); },
                                        [](const Candidate& candidate) { return count_text(devices_of(candidate)); }},
                                 of_number<&Candidate::zero>("zero"),
                                 of_number<&Candidate::dp_replicate>("shard groups"),
                                 of_number<&Candidate::micro_batch>("micro-batch"),
                                 of_word<&Candidate::recompute>("recompute"),
                                 of_flag<&Candidate::offload_optimizer>("offload")};

struct Measure {
  std::string_view name;
  double (*number)(const Found&);
  std::string (*text)(double value, double scale);
};
constexpr std::array<Measure, 3> kMeasures = {{{"step", [](const Found& found) { return found.estimate.seconds; }, seconds_text},
                                               {"memory", [](const Found& found) { return memory_of(found); }, memory_text},
                                               {"MFU", [](const Found& found) { return found.estimate.mfu_causal; }, percents}}};

class Parallel {
 public:
  Parallel(const PlanPage& page, const std::vector<const Found*>& found) : page_(page), found_(found) {
    for (const Choice& choice : kChoices) {
      std::set<double> values;
      for (const Found* one : found) values.insert(choice.number(one->candidate));
      if (values.size() > 1)
        choices_.push_back({&choice, {values.begin(), values.end()}});
      else
        same_.push_back(cat(choice.name, " ", choice.text(found.front()->candidate)));
    }
  }

  std::string text() const {
    SvgWriter svg(kWidth);
    for (size_t i = 0; i < columns(); ++i) svg.line("axis", x(i), kTop, x(i), kBottom);
    // The best ones last: nothing covers them.
    for (size_t i = found_.size(); i-- > 0;) line(svg, i);
    for (size_t i = 0; i < choices_.size(); ++i) marks(svg, i);
    for (size_t i = 0; i < kMeasures.size(); ++i) measure(svg, i);
    std::string html = cat("<p class=\"q\">Choose a value (click, or Tab and Enter) to see the layouts that have it; once more to see all. ",
                           same_.empty() ? "" : cat("The same in all: ", escaped(join(same_, ", ")), "."), "</p>\n");
    return cat(html, "<div data-pick=\"line-told\" id=\"parallel\">", svg.done(kBottom + 22,
                                                                               "every layout as a line over its choices, its time and its memory"),
               "<output class=\"told\" id=\"line-told\">Hover, or use the arrow keys in the picture.</output></div>\n");
  }

 private:
  static constexpr double kTop = 52, kBottom = 308, kSide = 70;
  static constexpr size_t kMostMarks = 16;
  struct Column {
    const Choice* choice;
    std::vector<double> values;
  };

  size_t columns() const { return choices_.size() + kMeasures.size(); }
  double x(size_t column) const { return kSide + static_cast<double>(column) * (kWidth - 2 * kSide) / static_cast<double>(columns() - 1); }

  static size_t place(const Column& column, const Candidate& candidate) {
    return static_cast<size_t>(std::ranges::lower_bound(column.values, column.choice->number(candidate)) - column.values.begin());
  }
  static double y(const Column& column, size_t place) {
    return kBottom - 12 - static_cast<double>(place) * (kBottom - kTop - 24) / static_cast<double>(column.values.size() - 1);
  }
  Scale scale(const Measure& measure) const {
    double least = measure.number(*found_.front()), most = least;
    for (const Found* one : found_) {
      least = std::min(least, measure.number(*one));
      most = std::max(most, measure.number(*one));
    }
    return {least, most, kBottom - 12, kTop + 12};
  }

  void line(SvgWriter& svg, size_t index) const {
    const Found& found = *found_[index];
    std::string points;
    std::vector<std::string> places;
    for (size_t i = 0; i < choices_.size(); ++i) {
      const size_t at = place(choices_[i], found.candidate);
      places.push_back(cat(at));
      points += cat(decimal(x(i)), ",", decimal(y(choices_[i], at)), " ");
    }
    for (size_t i = 0; i < kMeasures.size(); ++i)
      points += cat(decimal(x(choices_.size() + i)), ",", decimal(scale(kMeasures[i]).at(kMeasures[i].number(found))), " ");
    svg.raw(cat("<polyline class=\"ln", index == 0 ? " first" : is_best(page_, index) ? " best" : "", "\" data-i=\"", index, "\" data-c=\"",
                join(places, ","), "\"",
                attribute("data-t", told(page_, found, index)), " points=\"", points, "\"/>\n"));
  }

  void marks(SvgWriter& svg, size_t column) const {
    const Column& of = choices_[column];
    svg.text("m b", x(column), column % 2 == 0 ? 32 : 16, of.choice->name);
    const size_t each = (of.values.size() + kMostMarks - 1) / kMostMarks;  // of very many values not all have room
    for (size_t i = 0; i < of.values.size(); i += each) {
      const auto has = std::ranges::find_if(found_, [&](const Found* one) { return place(of, one->candidate) == i; });
      svg.text("m tick", x(column), y(of, i) + 4, of.choice->text((*has)->candidate),
               cat(" tabindex=\"0\" role=\"button\" aria-pressed=\"false\" data-a=\"", column, "\" data-v=\"", i, "\""));
    }
  }

  void measure(SvgWriter& svg, size_t index) const {
    const size_t column = choices_.size() + index;
    const Scale of = scale(kMeasures[index]);
    svg.text("m b", x(column), column % 2 == 0 ? 32 : 16, kMeasures[index].name);
    svg.text("m", x(column), kBottom + 14, kMeasures[index].text(of.low, of.high));
    svg.text("m", x(column), kTop - 4, kMeasures[index].text(of.high, of.high));
  }

  const PlanPage& page_;
  const std::vector<const Found*>& found_;
  std::vector<Column> choices_{};
  std::vector<std::string> same_{};
};

}  // namespace

std::string scatter_svg(const PlanPage& page, const std::vector<const Found*>& found) {
  constexpr double kTop = 10, kBottom = 330, kLeft = 90, kRight = 20, kWideRange = 2;
  double fastest = found.front()->estimate.seconds, slowest = fastest, least = memory_of(*found.front()), most = std::max(least,
                                                                                                                            page.cluster.device.memory);
  for (const Found* one : found) {
    fastest = std::min(fastest, one->estimate.seconds);
    slowest = std::max(slowest, one->estimate.seconds);
    least = std::min(least, memory_of(*one));
    most = std::max(most, memory_of(*one));
  }
  Scale time = scale_of(fastest, slowest, kLeft, kWidth - kRight);
  if (slowest > kWideRange * fastest) time = {fastest * 0.96, slowest * 1.1, kLeft, kWidth - kRight, true};
  const Scale memory = scale_of(least, most, kBottom, kTop);
  SvgWriter svg(kWidth);
  constexpr double kGibibyte = 1 << 30;  // marks are round in the unit that they are printed in
  const double up = kGibibyte * round_step((memory.high - memory.low) / kGibibyte, 6);
  for (const double mark : time.marks(10)) {
    svg.line("grid", time.at(mark), kTop, time.at(mark), kBottom);
    svg.text("q m", time.at(mark), kBottom + 15, time_text(mark, false, time.low));
  }
  for (double mark = std::ceil(memory.low / up) * up; mark <= memory.high; mark += up) {
    svg.line("grid", kLeft, memory.at(mark), kWidth - kRight, memory.at(mark));
    svg.text("q r", kLeft - 8, memory.at(mark) + 4, format_bytes(mark));
  }
  if (page.cluster.device.memory > 0) {
    svg.line("limit", kLeft, memory.at(page.cluster.device.memory), kWidth - kRight, memory.at(page.cluster.device.memory));
    svg.text("r q", kWidth - kRight, memory.at(page.cluster.device.memory) - 5, "memory of the device");
  }
  std::string path;
  for (const size_t i : front(found))
    path += cat(path.empty() ? "M" : "H", decimal(time.at(found[i]->estimate.seconds)), path.empty() ? " " : "V",
                decimal(memory.at(memory_of(*found[i]))));
  svg.raw(cat("<path class=\"front\" d=\"", path, "\"/>\n"));
  for (size_t i = found.size(); i-- > 0;) {
    const double x = time.at(found[i]->estimate.seconds), y = memory.at(memory_of(*found[i]));
    svg.raw(cat("<g data-i=\"", i, "\"", attribute("data-t", told(page, *found[i], i)), "><circle class=\"", is_best(page, i) ? "best" : "other",
                "\" cx=\"", decimal(x),
                "\" cy=\"", decimal(y), "\" r=\"", is_best(page, i) ? 9 : 5, "\"/>"));
    if (is_best(page, i)) svg.text("n", x, y + 4, cat(i + 1));
    // Fewer devices take longer and cost less: not to be mistaken for a slow layout.
    if (!is_best(page, i) && devices_of(found[i]->candidate) != devices_of(found[0]->candidate))
      svg.text("q halo", x > kWidth - 140 ? x - 100 : x + 9, y + 4, cat(count_text(devices_of(found[i]->candidate)), " devices"));
    svg.raw("</g>\n");
  }
  svg.text("q m", (kLeft + kWidth) / 2, kBottom + 32,
           cat("time of a step", time.logarithmic ? ", by factors" : "", "; the dashed line: no layout is both faster and smaller"));
  return cat("<div data-pick=\"dot-told\">", svg.done(kBottom + 38, "time of a step against memory of the worst stage"),
             "<output class=\"told\" id=\"dot-told\">Hover, or use the arrow keys in the picture: which layout.</output></div>\n");
}

std::string parallel_svg(const PlanPage& page, const std::vector<const Found*>& found) { return Parallel(page, found).text(); }

}  // namespace lockstep::plan
