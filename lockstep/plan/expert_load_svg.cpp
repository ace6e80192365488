#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/plan/drawing.h"
#include "lockstep/plan/expert_load.h"

namespace lockstep::plan {
namespace {

constexpr double kWidth = 1200, kLeft = 84, kRight = 20, kTop = 62, kAxis = 30;  // pixels; margins
constexpr double kTall = 960, kGap = 8, kLeastLayer = 14, kLargestCell = 10;     // of all rows, between layers, of one of them, of a cell
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
@media screen and (prefers-color-scheme:dark){
.ls-load .bg{fill:#15181d}.ls-load text{fill:#e4e7eb}.ls-load .q{fill:#9aa3af}.ls-load .e{fill:#2c323b}.ls-load .z{fill:#e070b0}}
)";

std::string label(const char* style, double x, double y, const std::string& text) {
  return cat("<text class=\"", style, "\" x=\"", decimal(x, 2), "\" y=\"", decimal(y, 2), "\">", text, "</text>\n");
}

class HeatMap {
 public:
  explicit HeatMap(const LoadHistory& history) : history_(history), experts_(static_cast<size_t>(history.experts())) {
    const std::vector<LoadColumn>& all = history.columns();
    const size_t rows = history.layers().size() * experts_, together = (rows * all.size() + kMostCells - 1) / kMostCells;
    for (size_t i = 0; i < all.size(); ++i) {
      if (i % together == 0) {
        columns_.push_back(all[i]);
        continue;
      }
      LoadColumn& column = columns_.back();
      column.last = all[i].last;
      for (size_t j = 0; j < rows; ++j) column.routed[j] += all[i].routed[j];
    }
    cell_width_ = (kWidth - kLeft - kRight) / static_cast<double>(columns_.size());
    const auto of_layer = static_cast<double>(experts_);
    cell_height_ = std::max(std::clamp(kTall / static_cast<double>(rows), 1.0, kLargestCell), kLeastLayer / of_layer);
    layer_height_ = cell_height_ * of_layer + kGap;
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
    for (size_t layer = 0; layer < layers; ++layer) svg += rows_of(layer);
    return svg + axis(bottom) + "</svg>\n";
  }

 private:
  double x(size_t column) const { return kLeft + cell_width_ * static_cast<double>(column); }

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
    const double top = kTop + layer_height_ * static_cast<double>(layer), height = cell_height_ * static_cast<double>(experts_);
    std::array<std::string, std::size(kShades)> paths;
    for (size_t expert = 0; expert < experts_; ++expert) add_row(layer, expert, paths);
    std::string svg = cat("<g transform=\"translate(0,", decimal(top, 2), ")\">\n", label("r", kLeft - 8, height / 2 + 4, escaped(history_.layers()[layer])),
                          "<rect class=\"e\" x=\"", kLeft, "\" width=\"", decimal(kWidth - kLeft - kRight), "\" height=\"", decimal(height, 2), "\"/>\n");
    for (size_t shade = 0; shade < paths.size(); ++shade)
      if (!paths[shade].empty()) svg += cat("<path class=\"", kShades[shade].name, "\" d=\"", paths[shade], "\"/>\n");
    return svg + "</g>\n";
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
    const auto begin = column.routed.begin() + static_cast<std::ptrdiff_t>(layer * experts_);
    double all = 0;
    for (auto load = begin; load != begin + static_cast<std::ptrdiff_t>(experts_); ++load) all += *load;
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
  double cell_width_ = 1, cell_height_ = 1, layer_height_ = 1;
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
  std::string table =
      "<table>\n<tr><th>layer</th><th>largest load / mean</th><th>smallest / mean</th>"
      "<th class=\"l\">experts without a token (last had one)</th></tr>\n";
  for (size_t i = 0; i < layers.size(); ++i) {
    dead += layers[i].dead.size();
    largest = std::max(largest, layers[i].largest);
    table += cat("<tr><td>", escaped(history.layers()[i]), "</td><td>", decimal(layers[i].largest, 2), "</td><td>", decimal(layers[i].smallest, 2),
                 "</td><td class=\"l\">", dead_text(layers[i].dead), "</td></tr>\n");
  }
  const std::string died = dead == 0 ? "every expert has had tokens"
                                     : cat(dead, " of ", history.layers().size() * static_cast<size_t>(history.experts()), " experts had no token");
  return cat("<section id=\"experts\">\n<h2>Load of experts</h2>\n<p>In the last tenth of the steps ", died, ", and the largest load of an expert was ",
             decimal(largest, 2), " times the mean of its layer.</p>\n<div class=\"gantt\">", HeatMap(history).text(), "</div>\n", table,
             "</table>\n</section>\n");
}

}  // namespace lockstep::plan
