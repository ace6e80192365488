#include "lockstep/plan/plan_html_parts.h"

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/plan/drawing_text.h"

namespace lockstep::plan {
namespace {

std::string number(double value) { return decimal(value, 1); }

}  // namespace

void SvgWriter::rect(std::string_view look, double x, double y, double width, double height, std::string_view more) {
  body_ += cat("<rect class=\"", look, "\" x=\"", number(x), "\" y=\"", number(y), "\" width=\"", number(std::max(width, 0.0)), "\" height=\"",
               number(std::max(height, 0.0)), "\"", more, "/>\n");
}

void SvgWriter::line(std::string_view look, double x1, double y1, double x2, double y2) {
  body_ += cat("<line class=\"", look, "\" x1=\"", number(x1), "\" y1=\"", number(y1), "\" x2=\"", number(x2), "\" y2=\"", number(y2), "\"/>\n");
}

void SvgWriter::text(std::string_view look, double x, double y, std::string_view text, std::string_view more) {
  body_ += cat("<text class=\"", look, "\" x=\"", number(x), "\" y=\"", number(y), "\"", more, ">", escaped(text), "</text>\n");
}

std::string SvgWriter::done(double height, std::string_view label, std::string_view more) const {
  return cat("<div class=\"pic\"><svg viewBox=\"0 0 ", number(width_), " ", number(height), "\" width=\"", number(width_), "\" height=\"", number(height),
             "\" role=\"img\"", attribute("aria-label", label), more, ">\n", body_, "</svg></div>\n");
}

TableWriter::TableWriter(const std::vector<std::string>& headers, std::string_view caption) {
  html_ = cat("<div class=\"wide\"><table>\n", caption.empty() ? "" : cat("<caption>", escaped(caption), "</caption>\n"), "<thead><tr>");
  for (size_t i = 0; i < headers.size(); ++i) {
    const bool marked = headers[i].starts_with('<');
    left_.push_back(i == 0 || marked);
    html_ += cat("<th scope=\"col\"", left_.back() ? " class=\"l\"" : "", ">", escaped(std::string_view(headers[i]).substr(marked ? 1 : 0)), "</th>");
  }
  html_ += "</tr></thead>\n<tbody>\n";
}

void TableWriter::row(const std::vector<std::string>& cells, std::string_view attributes) {
  std::vector<std::string> html;
  for (const std::string& cell : cells) html.push_back(escaped(cell));
  raw_row(html, attributes);
}

void TableWriter::raw_row(const std::vector<std::string>& cells, std::string_view attributes) {
  html_ += cat("<tr", attributes, ">");
  for (size_t i = 0; i < cells.size(); ++i) html_ += cat(i < left_.size() && left_[i] ? "<td class=\"l\">" : "<td>", cells[i], "</td>");
  html_ += "</tr>\n";
}

void TableWriter::below(std::string_view html, std::string_view attributes) {
  html_ += cat("<tr", attributes, "><td></td><td class=\"l\" colspan=\"", left_.size() - 1, "\">", html, "</td></tr>\n");
}

void TableWriter::head(std::string_view text) {
  html_ += cat("<tr><th scope=\"rowgroup\" class=\"l group\" colspan=\"", left_.size(), "\">", escaped(text), "</th></tr>\n");
}

std::string attribute(std::string_view name, std::string_view value) { return cat(" ", name, "=\"", escaped(value), "\""); }

const StageEstimate* worst_stage(const StepEstimate& estimate) {
  const auto found = std::ranges::find(estimate.stages, estimate.worst_stage, &StageEstimate::stage);
  return found == estimate.stages.end() ? nullptr : &*found;
}

}  // namespace lockstep::plan
