#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/plan/drawing.h"
#include "lockstep/plan/expert_load.h"

namespace lockstep::plan {
namespace {

constexpr double kWidth = 1200, kLeft = 104, kRight = 20, kTop = 62, kAxis = 30;  // pixels; margins
constexpr double kTall = 960, kGap = 14, kLeastLayer = 14, kLargestCell = 10;    // of all rows, between layers, of one of them, of a cell
constexpr double kLine = 28, kLineGap = 5, kNumber = 10;                         // of a line, above it, of an expert's number
constexpr size_t kMostCells = 200'000;
constexpr size_t kMostNamed = 16;  // dead experts of a layer
constexpr size_t kMarks = 12;      // of the axis

// How a load is shown, by its ratio to the mean of the layer.
struct Shade {
  double below;  // of this ratio; the first that fits. Loads of 0 are the first shade.
  std::string_view name;
  std::string_view legend;
};
constexpr Shade kShades[] = {{0, "z", "no token"},         {0.25, "u2", "below 1/4 of the mean"}, {0.5, "u1", "1/4 to 1/2"}, {0.8, "u0", "1/2 to 4/5"},
                             {1.25, "e", "even"},          {2, "o0", "5/4 to 2 times"},           {4, "o1", "2 to 4"},       {1e300, "o2", "above 4"}};
constexpr size_t kEven = 4;

size_t shade_of(double ratio) {
  size_t shade = ratio > 0 ? 1 : 0;
  while (shade > 0 && ratio >= kShades[shade].below) ++shade;
  return shade;
}

constexpr std::string_view kStyle = R"(
.ls-load{font-family:system-ui,"DejaVu Sans",Verdana,sans-serif;font-size:11px;font-variant-numeric:tabular-nums}
.ls-load .bg{fill:#fff}.ls-load text{fill:#1c1f24}.ls-load .h{font-size:14px;font-weight:600}.ls-load .q{fill:#5a626e}
.ls-load .r{text-anchor:end}.ls-load .m{text-anchor:middle}.ls-load .e{fill:#e6e8eb}.ls-load .z{fill:#b0307a}
.ls-load .u2{fill:#0072b2}.ls-load .u1{fill:#56b4e9}.ls-load .u0{fill:#b5ddf4}
.ls-load .o0{fill:#f6d48c}.ls-load .o1{fill:#e69f00}.ls-load .o2{fill:#d55e00}
.ls-load .n{font-size:9px}.ls-load .g{fill:none;stroke:#b4bac2}.ls-load .l{fill:none;stroke:#1c1f24;stroke-width:1.5}.ls-load .d{stroke:#d55e00}
@media screen and (prefers-color-scheme:dark){
.ls-load .bg{fill:#15181d}.ls-load text{fill:#e4e7eb}.ls-load .q{fill:#9aa3af}.ls-load .e{fill:#2c323b}.ls-load .z{fill:#e070b0}
.ls-load .g{stroke:#4a525d}.ls-load .l{stroke:#e4e7eb}.ls-load .d{stroke:#e69f00}}
)";

std::string label(const char* style, double x, double y, const std::string& text) {
  return cat("<text class=\"", style, "\" x=\"", decimal(x, 2), "\" y=\"", decimal(y, 2), "\">", text, "</text>\n");
}

// What a line is of, and how it is scaled: alike in all layers.
struct LineOf {
  std::string_view name, means;  // left of it; what it is for who points at it
  std::string_view style;
  double bottom = 0, top = 1;    // values
  std::string (*text)(double value) = nullptr;
  double (*value)(const LoadColumn& column, size_t layer, size_t experts) = nullptr;
};

std::string ratio_text(double value) { return decimal(value, 2); }

double max_over_mean(const LoadColumn& column, size_t layer, size_t) {
  return column.max_over_mean[layer] / static_cast<double>(column.steps);
}

double routed(const LoadColumn& column, size_t layer, size_t experts) {
  const auto begin = column.routed.begin() + static_cast<std::ptrdiff_t>(layer * experts);
  return std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(experts), 0.0);
}

double dropped_share(const LoadColumn& column, size_t layer, size_t experts) {
  const double all = routed(column, layer, experts);
  return all > 0 ? column.dropped[layer] / all : 0;
}

class Picture {
 public:
  explicit Picture(const LoadHistory& history) : history_(history), experts_(static_cast<size_t>(history.experts())) {
    const std::vector<LoadColumn>& all = history.columns();
    const size_t rows = history.layers().size() * experts_, together = (rows * all.size() + kMostCells - 1) / kMostCells;
    for (size_t i = 0; i < all.size(); ++i) {
      if (i % together == 0)
        columns_.push_back(all[i]);
      else
        columns_.back().add(all[i]);
    }
    add_line({.name = "max / mean", .means = "largest load over the mean", .style = "l", .bottom = 1, .text = ratio_text, .value = max_over_mean}, 0.5);
    if (history.drops())
      add_line({.name = "dropped", .means = "share of the assignments that was dropped", .style = "l d", .text = percent_text, .value = dropped_share}, 0.01);
    cell_width_ = (kWidth - kLeft - kRight) / static_cast<double>(columns_.size());
    const auto of_layer = static_cast<double>(experts_);
    cell_height_ = std::max(std::clamp(kTall / static_cast<double>(rows), 1.0, kLargestCell), kLeastLayer / of_layer);
    map_height_ = cell_height_ * of_layer;
    layer_height_ = map_height_ + static_cast<double>(lines_.size()) * (kLineGap + kLine) + kGap;
  }

  std::string text() const {
    const size_t layers = history_.layers().size();
    const double bottom = kTop + layer_height_ * static_cast<double>(layers), height = bottom + kAxis;
    std::string svg = cat("<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"ls-load\" viewBox=\"0 0 ", kWidth, " ", decimal(height), "\" width=\"",
                          kWidth, "\" height=\"", decimal(height), "\" role=\"img\">\n<title>Load of experts</title>\n<style>", kStyle,
                          "</style>\n<rect class=\"bg\" width=\"", kWidth, "\" height=\"", decimal(height), "\"/>\n",
                          label("h", kLeft, 20, cat("Tokens of each expert over the mean of its layer, steps ", columns_.front().first, " to ",
                                                    columns_.back().last)),
                          legend());
    for (size_t layer = 0; layer < layers; ++layer) {
      svg += cat("<g transform=\"translate(0,", decimal(kTop + layer_height_ * static_cast<double>(layer), 2), ")\">\n", rows_of(layer));
      for (size_t line = 0; line < lines_.size(); ++line) svg += line_of(layer, lines_[line], map_height_ + kLineGap + static_cast<double>(line) * (kLineGap + kLine));
      svg += "</g>\n";
    }
    return svg + axis(bottom) + "</svg>\n";
  }

 private:
  double x(size_t column) const { return kLeft + cell_width_ * static_cast<double>(column); }

  // To a round number at the top, of all layers, at least `least` above the bottom.
  void add_line(LineOf line, double least) {
    double range = least;
    for (const LoadColumn& column : columns_)
      for (size_t layer = 0; layer < history_.layers().size(); ++layer) range = std::max(range, line.value(column, layer, experts_) - line.bottom);
    const double step = round_step(range, 4);
    line.top = line.bottom + step * std::ceil(range / step - 1e-9);
    lines_.push_back(line);
  }

  std::string legend() const {
    std::string svg;
    double at = kLeft;
    for (const Shade& shade : kShades) {
      svg += cat("<g transform=\"translate(", decimal(at), ",33)\"><rect class=\"", shade.name, "\" width=\"14\" height=\"12\"/><text x=\"19\" y=\"10\">",
                 shade.legend, "</text></g>\n");
      at += 33 + 6.8 * static_cast<double>(shade.legend.size());
    }
    return svg;
  }

  // Experts from top to bottom, each shade as one path; what is even is the ground.
  std::string rows_of(size_t layer) const {
    std::array<std::string, std::size(kShades)> paths;
    for (size_t expert = 0; expert < experts_; ++expert) add_row(layer, expert, paths);
    std::string svg = cat(label("r", kLeft - 30, map_height_ / 2 + 4, escaped(history_.layers()[layer])), "<rect class=\"e\" x=\"", kLeft, "\" width=\"",
                          decimal(kWidth - kLeft - kRight), "\" height=\"", decimal(map_height_, 2), "\"/>\n");
    const auto every = static_cast<size_t>(round_step(static_cast<double>(experts_), std::max(1, static_cast<int>(map_height_ / kNumber))));
    for (size_t expert = 0; expert < experts_; expert += every)
      svg += label("q r n", kLeft - 5, cell_height_ * (static_cast<double>(expert) + 0.5) + 3, cat(expert));
    for (size_t shade = 0; shade < paths.size(); ++shade)
      if (!paths[shade].empty()) svg += cat("<path class=\"", kShades[shade].name, "\" d=\"", paths[shade], "\"/>\n");
    return svg;
  }

  // A step for each column.
  std::string line_of(size_t layer, const LineOf& line, double top) const {
    std::string path;
    double least = line.top, most = line.bottom;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const double value = line.value(columns_[i], layer, experts_);
      least = std::min(least, value);
      most = std::max(most, value);
      const double y = top + kLine * (1 - std::clamp((value - line.bottom) / (line.top - line.bottom), 0.0, 1.0));
      path += cat(i == 0 ? cat("M", decimal(x(0), 2), " ") : "V", decimal(y, 2), "H", decimal(x(i + 1), 2));
    }
    return cat("<g>\n<title>", escaped(history_.layers()[layer]), ": ", line.means, ", ", line.text(least), " to ", line.text(most), "</title>\n",
               label("r", kLeft - 8, top + 11, std::string(line.name)), label("q r", kLeft - 8, top + 24, cat(line.text(line.bottom), " to ", line.text(line.top))),
               "<rect class=\"g\" x=\"", kLeft, "\" y=\"", decimal(top, 2), "\" width=\"", decimal(kWidth - kLeft - kRight), "\" height=\"", kLine,
               "\"/>\n<path class=\"", line.style, "\" d=\"", path, "\"/>\n</g>\n");
  }

  void add_row(size_t layer, size_t expert, std::array<std::string, std::size(kShades)>& paths) const {
    for (size_t begin = 0, end = 0; begin < columns_.size(); begin = end) {
      const size_t shade = shade_of(ratio(columns_[begin], layer, expert));
      for (end = begin + 1; end < columns_.size() && shade_of(ratio(columns_[end], layer, expert)) == shade;) ++end;
      if (shade == kEven) continue;
      paths[shade] += cat("M", decimal(x(begin), 2), " ", decimal(cell_height_ * static_cast<double>(expert), 2), "H", decimal(x(end), 2), "v",
                          decimal(cell_height_, 2), "H", decimal(x(begin), 2), "z");
    }
  }

  double ratio(const LoadColumn& column, size_t layer, size_t expert) const {
    const double all = routed(column, layer, experts_);
    return all > 0 ? column.routed[layer * experts_ + expert] * static_cast<double>(experts_) / all : 0;
  }

  // Below a column the first of its steps.
  std::string axis(double bottom) const {
    std::string svg;
    const size_t every = (columns_.size() + kMarks - 1) / kMarks;
    for (size_t i = 0; i < columns_.size(); i += every) svg += label("q m", x(i) + cell_width_ / 2, bottom + 10, cat(columns_[i].first));
    return svg;
  }

  const LoadHistory& history_;
  const size_t experts_;
  std::vector<LoadColumn> columns_;  // neighbours together where there are too many cells
  double cell_width_ = 1, cell_height_ = 1, map_height_ = 1, layer_height_ = 1;
  std::vector<LineOf> lines_{};
};

// "3 (step 40), 7 (never)"
std::string dead_text(const std::vector<LayerLoad::Dead>& dead) {
  std::vector<std::string> names;
  for (const LayerLoad::Dead& expert : dead) {
    if (names.size() == kMostNamed) {
      names.push_back(cat(dead.size() - kMostNamed, " more"));
      break;
    }
    names.push_back(cat(expert.expert, expert.last_step > 0 ? cat(" (step ", expert.last_step, ")") : std::string(" (never)")));
  }
  return names.empty() ? "none" : join(names, ", ");
}

}  // namespace

std::string expert_section(const LoadHistory& history) {
  if (history.columns().empty()) return "";
  const std::vector<LayerLoad> layers = last_loads(history);
  size_t dead = 0;
  double largest = 0;
  std::string table = cat("<table>\n<tr><th>layer</th><th>largest load / mean</th><th>smallest / mean</th>", history.drops() ? "<th>dropped</th>" : "",
                          "<th class=\"l\">experts without a token (last had one)</th></tr>\n");
  for (size_t i = 0; i < layers.size(); ++i) {
    dead += layers[i].dead.size();
    largest = std::max(largest, layers[i].largest);
    table += cat("<tr><td>", escaped(history.layers()[i]), "</td><td>", decimal(layers[i].largest, 2), "</td><td>", decimal(layers[i].smallest, 2),
                 history.drops() ? cat("</td><td>", percent_text(layers[i].dropped)) : "", "</td><td class=\"l\">", dead_text(layers[i].dead), "</td></tr>\n");
  }
  const std::string died = dead == 0 ? "every expert has had tokens"
                                     : cat(dead, " of ", history.layers().size() * static_cast<size_t>(history.experts()), " experts had no token");
  return cat("<section id=\"experts\">\n<h2>Load of experts</h2>\n<p>In the last tenth of the steps ", died, ", and the largest load of an expert was ",
             decimal(largest, 2), " times the mean of its layer.</p>\n<div class=\"gantt\">", Picture(history).text(), "</div>\n", table,
             "</table>\n</section>\n");
}

}  // namespace lockstep::plan
