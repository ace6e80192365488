// What the page about a plan is put together from. Each section is HTML that stands alone; all text from outside is escaped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/plan/plan_html.h"
#include "lockstep/plan/plan_text.h"

namespace lockstep::plan {

// What somebody who decides reads: the decision in sentences, numbers, how to start it.
std::string decision_section(const PlanPage& page);
std::string fit_section(const PlanPage& page);
std::string step_section(const PlanPage& page);
std::string network_section(const PlanPage& page);
std::string layouts_section(const PlanPage& page);
std::string what_if_section(const PlanPage& page);
std::string constants_section(const PlanPage& page);

// Pictures inside of them.
std::string topology_svg(const PlanPage& page);
// A bar of parts for the step of each.
std::string step_bars_svg(const std::vector<const Found*>& found);
std::string scatter_svg(const PlanPage& page, const std::vector<const Found*>& found);
std::string parallel_svg(const PlanPage& page, const std::vector<const Found*>& found);
std::string tornado_svg(const std::vector<Sensitivity>& sensitivity);
// JSON of the Gantt, which the script draws: {"step": seconds, "ticks": of it, "stages": of the pipeline, "labels": [...], "rows":
// [{"stage", "lane", "boxes": "label,gap,length;..."}]}, times in ticks, each gap from the end of the box before; empties are 0.
std::string gantt_json(const StepEstimate& estimate);

std::string_view plan_style();
std::string_view plan_script();

// Of a stage's number; nothing where there is none.
const StageEstimate* worst_stage(const StepEstimate& estimate);

// The best layouts first, then the others of the Pareto front, each once.
std::vector<const Found*> candidates_shown(const SearchResult& search);

// SVG, element by element. `look` is a class of the style sheet.
class SvgWriter {
 public:
  explicit SvgWriter(double width) : width_(width) {}
  void rect(std::string_view look, double x, double y, double width, double height, std::string_view more = "");
  void line(std::string_view look, double x1, double y1, double x2, double y2);
  void text(std::string_view look, double x, double y, std::string_view text, std::string_view more = "");
  void raw(std::string_view svg) { body_ += svg; }
  const std::string& body() const { return body_; }
  // The whole picture; `label` says what it shows to those who do not see it.
  std::string done(double height, std::string_view label, std::string_view more = "") const;

 private:
  double width_;
  std::string body_{};
};

// A table; columns behind the first are numbers unless their header begins with "<", which is left out then. Cells are escaped.
class TableWriter {
 public:
  explicit TableWriter(const std::vector<std::string>& headers, std::string_view caption = "");
  void row(const std::vector<std::string>& cells, std::string_view attributes = "");
  void raw_row(const std::vector<std::string>& cells, std::string_view attributes = "");  // HTML
  void below(std::string_view html, std::string_view attributes = "");  // more of the last row, from its second column on
  void head(std::string_view text);  // of the rows that follow
  std::string done() const { return html_ + "</tbody>\n</table></div>\n"; }

 private:
  std::vector<bool> left_;
  std::string html_;
};

// What a constant of a stack is, in a few words with its unit: "share of the peak that large products reach"; empty for others.
std::string_view constant_text(std::string_view constant);

std::string attribute(std::string_view name, std::string_view value);  // " name=\"escaped\""

}  // namespace lockstep::plan
