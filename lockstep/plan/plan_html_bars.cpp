// The steps of several layouts in parts, one below the other on one axis: why they differ.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/plan_html_parts.h"

namespace lockstep::plan {
namespace {

constexpr double kWidth = 1180, kLeft = 34, kRight = 90, kPitch = 26, kBar = 18, kLegend = 24;

std::string legend(const std::vector<const Term*>& there) {
  SvgWriter svg(kWidth);
  double x = kLeft, y = 0;
  for (const Term* term : there) {
    const double width = 34 + 7 * static_cast<double>(term->label.size());
    if (x + width > kWidth) {
      x = kLeft;
      y += kLegend;
    }
    svg.rect(cat("s-", term->name), x, y + 5, 14, 12);
    svg.text("", x + 19, y + 15, term->label);
    x += width;
  }
  return svg.done(y + kLegend, "legend of the parts of a step");
}

std::string bar_text(const Found& found, size_t index) {
  std::vector<std::string> parts;
  for (const Term& term : terms())
    if (const double value = found.estimate.breakdown.*term.seconds; value > 0)
      parts.push_back(cat(term.label, " ", seconds_text(value, found.estimate.seconds)));
  return cat("number ", index + 1, ": ", describe(found.candidate), ": ", join(parts, ", "));
}

}  // namespace

std::string step_bars_svg(const std::vector<const Found*>& found) {
  double most = 0;
  std::vector<const Term*> there;
  for (const Found* one : found) most = std::max(most, one->estimate.breakdown.sum());
  for (const Term& term : terms())
    if (std::ranges::any_of(found, [&](const Found* one) { return one->estimate.breakdown.*term.seconds > 0.001 * most; })) there.push_back(&term);
  if (!(most > 0)) return "";
  const double scale = (kWidth - kLeft - kRight) / most, bottom = kPitch * static_cast<double>(found.size()) + 4;
  SvgWriter svg(kWidth);
  const double step = round_step(most, 8);
  for (double mark = 0; mark <= most; mark += step) {
    svg.line("grid", kLeft + mark * scale, 0, kLeft + mark * scale, bottom);
    svg.text("q m", kLeft + mark * scale, bottom + 14, time_text(mark, false, most));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    const double y = 4 + kPitch * static_cast<double>(i);
    svg.text("r b", kLeft - 10, y + 14, cat(i + 1));
    svg.raw(cat("<g data-i=\"", i, "\"", attribute("data-t", bar_text(*found[i], i)), ">\n"));
    double x = kLeft;
    for (const Term& term : terms()) {
      const double width = found[i]->estimate.breakdown.*term.seconds * scale;
      if (width > 0.2) svg.rect(cat("s-", term.name, " edge"), x, y, width, kBar);
      x += width;
    }
    svg.raw("</g>\n");
    svg.text("", x + 8, y + 14, seconds_text(found[i]->estimate.seconds, found[0]->estimate.seconds));
  }
  return cat(legend(there), "<div data-pick=\"bar-told\">", svg.done(bottom + 20, "the steps of the best layouts in parts"),
             "<output class=\"told\" id=\"bar-told\">Hover, or use the arrow keys in the picture: what a step consists of.</output></div>\n");
}

}  // namespace lockstep::plan
