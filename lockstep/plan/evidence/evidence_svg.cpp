#include "lockstep/plan/evidence/evidence_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>

#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

constexpr double kSize = 560, kLeft = 76, kTop = 48, kBottom = 50, kLegend = 250;  // pixels
constexpr double kWidth = kLeft + kSize + kLegend, kHeight = kTop + kSize + kBottom;
constexpr double kLine = 18;  // of the legend
constexpr size_t kColours = 7;

constexpr std::string_view kStyle = R"(
.ls-svg{font-family:system-ui,"DejaVu Sans",Verdana,sans-serif;font-size:11px;font-variant-numeric:tabular-nums}
.ls-svg .bg{fill:#fff}.ls-svg text{fill:#1c1f24}.ls-svg .h{font-size:14px;font-weight:600}.ls-svg .q{fill:#5a626e}
.ls-svg .r{text-anchor:end}.ls-svg .m{text-anchor:middle}.ls-svg .t{stroke:#d5d9df;stroke-width:1}
.ls-svg .e{stroke:#111;stroke-width:1.4}.ls-svg .n5{stroke:#5a626e;stroke-width:1;stroke-dasharray:6 4}
.ls-svg .n12{stroke:#5a626e;stroke-width:1;stroke-dasharray:2 4}.ls-svg .p{stroke-width:1.3}
.ls-svg .c0{fill:#56b4e9;stroke:#56b4e9}.ls-svg .c1{fill:#e69f00;stroke:#e69f00}.ls-svg .c2{fill:#2fb08a;stroke:#2fb08a}
.ls-svg .c3{fill:#d55e00;stroke:#d55e00}.ls-svg .c4{fill:#cc79a7;stroke:#cc79a7}.ls-svg .c5{fill:#0072b2;stroke:#0072b2}
.ls-svg .c6{fill:#a67c52;stroke:#a67c52}.ls-svg .p.o{fill:none}
@media screen and (prefers-color-scheme:dark){
.ls-svg .bg{fill:#15181d}.ls-svg text{fill:#e4e7eb}.ls-svg .q{fill:#9aa3af}.ls-svg .t{stroke:#2c323b}.ls-svg .e{stroke:#fff}
.ls-svg .n5,.ls-svg .n12{stroke:#9aa3af}}
)";

// Around 0, 0: circle, square, triangle, diamond, cross.
constexpr std::array<std::string_view, 5> kMarks = {"M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0Z", "M-3-3H3V3H-3Z", "M0-3.8L3.7 3H-3.7Z",
                                                    "M0-4L4 0L0 4L-4 0Z",
                                                    "M-3.6-3.6L3.6 3.6M3.6-3.6L-3.6 3.6"};

std::string fixed(double value, int digits = 1) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') result += "&amp;";
    else if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '"') result += "&quot;";
    else result += c;
  }
  return result;
}

std::string label(const char* style, double x, double y, const std::string& text) {
  return cat("<text class=\"", style, "\" x=\"", fixed(x), "\" y=\"", fixed(y), "\">", escaped(text), "</text>\n");
}

class Scatter {
 public:
  explicit Scatter(const Evidence& evidence) : evidence_(evidence) {
    low_ = 0.5;
    high_ = 2;
    for (const Compared& row : evidence.rows) {
      sources_.try_emplace(row.prediction.source, 0);
      for (const double seconds : {row.measured, row.prediction.seconds}) {
        if (!(seconds > 0)) continue;
        low_ = std::min(low_, seconds);
        high_ = std::max(high_, seconds);
      }
    }
    size_t next = 0;
    for (auto& [name, look] : sources_) look = next++;
    low_ /= 1.2;
    high_ *= 1.2;
  }

  std::string text() const {
    const double height = std::max(kHeight, kTop + kLine * static_cast<double>(sources_.size() + 5));
    const std::string size = cat("width=\"", fixed(kWidth), "\" height=\"", fixed(height), "\"");
    std::string svg = cat("<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"ls-svg\" viewBox=\"0 0 ", fixed(kWidth), " ", fixed(height), "\" ", size,
                          " role=\"img\">\n<title>", kTitle, "</title>\n<style>", kStyle, "</style>\n<rect class=\"bg\" ", size, "/>\n");
    svg += label("h", kLeft, 20, std::string(kTitle)) + axes() + diagonals() + points() + legend();
    return svg + "</svg>\n";
  }

 private:
  static constexpr std::string_view kTitle = "Step time of published runs: predicted over measured";

  double place(double seconds) const { return std::log(seconds / low_) / std::log(high_ / low_); }  // 0 to 1
  double x(double seconds) const { return kLeft + kSize * place(seconds); }
  double y(double seconds) const { return kTop + kSize * (1 - place(seconds)); }
  std::string line(const char* style, double x1, double y1, double x2, double y2) const {
    return cat("<line class=\"", style, "\" x1=\"", fixed(x1), "\" y1=\"", fixed(y1), "\" x2=\"", fixed(x2), "\" y2=\"", fixed(y2), "\"/>\n");
  }

  std::string axes() const {
    std::string svg;
    for (double decade = std::pow(10, std::floor(std::log10(low_))); decade <= high_; decade *= 10)
      for (const int times : {1, 2, 5}) {
        const double mark = times * decade;
        if (mark < low_ || mark > high_) continue;
        const std::string text = number_text(std::round(mark * 1e6) / 1e6);
        svg += line("t", x(mark), kTop, x(mark), kTop + kSize) + line("t", kLeft, y(mark), kLeft + kSize, y(mark)) +
               label("q m", x(mark), kTop + kSize + 15, text) + label("q r", kLeft - 6, y(mark) + 4, text);
      }
    svg += label("m", kLeft + kSize / 2, kTop + kSize + 36, "measured, seconds");
    return svg + cat("<text class=\"m\" transform=\"translate(18,", fixed(kTop + kSize / 2), ") rotate(-90)\">predicted, seconds</text>\n");
  }

  // predicted = factor x measured, as far as it is within the square.
  std::string diagonal(const char* style, double factor) const {
    const double begin = factor >= 1 ? low_ : low_ / factor, end = factor >= 1 ? high_ / factor : high_;
    return line(style, x(begin), y(begin * factor), x(end), y(end * factor));
  }
  std::string diagonals() const {
    std::string svg = diagonal("e", 1);
    for (const double off : {0.05, 0.12})
      for (const double factor : {1 - off, 1 + off}) svg += diagonal(off < 0.1 ? "n5" : "n12", factor);
    return svg;
  }

  std::string mark(size_t look, double x, double y, bool hollow, const std::string& title) const {
    const std::string path = cat("<path class=\"p c", look % kColours, hollow ? " o" : "", "\" transform=\"translate(", fixed(x), ",", fixed(y),
                                 ")\" d=\"", kMarks[look / kColours % kMarks.size()], "\"");
    return title.empty() ? path + "/>\n" : cat(path, "><title>", escaped(title), "</title></path>\n");
  }

  std::string points() const {
    std::string svg;
    for (const Compared& row : evidence_.rows) {
      const Prediction& of = row.prediction;
      if (!(row.measured > 0) || !(of.seconds > 0)) continue;
      const std::string title = cat(of.id, ": ", of.model, " on ", of.gpus, " x ", of.device, ", measured ", fixed(row.measured, 3),
                                    " s, predicted ", fixed(of.seconds, 3), " s, ", row.error() < 0 ? "" : "+", fixed(100 * row.error()), " %");
      svg += mark(sources_.at(of.source), x(row.measured), y(of.seconds), of.tier == "C", title);
    }
    return svg;
  }

  std::string legend() const {
    std::string svg;
    double at = kTop + 8;
    const double left = kLeft + kSize + 24;
    const auto entry = [&](const std::string& sample, const std::string& text) {
      svg += sample + label("", left + 28, at + 4, text);
      at += kLine;
    };
    entry(line("e", left, at, left + 20, at), "predicted as measured");
    entry(line("n5", left, at, left + 20, at), "5 % off");
    entry(line("n12", left, at, left + 20, at), "12 % off");
    at += kLine / 2;
    std::map<std::string, int> counts;
    for (const Compared& row : evidence_.rows) ++counts[row.prediction.source];
    for (const auto& [name, look] : sources_) entry(mark(look, left + 10, at, false, ""), cat(name.empty() ? "-" : name, " (", counts[name], ")"));
    svg += label("q", left, at + 6, "hollow: tier C, weak evidence");
    return svg;
  }

  const Evidence& evidence_;
  std::map<std::string, size_t> sources_{};  // and how each is drawn
  double low_ = 0, high_ = 0;
};

}  // namespace

std::string evidence_svg(const Evidence& evidence) { return Scatter(evidence).text(); }

}  // namespace lockstep::plan
