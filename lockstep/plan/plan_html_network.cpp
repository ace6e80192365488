// What the network carries: the map, the links of each class, the axes, the collectives of a rank.
#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/links_text.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/plan_html_parts.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {

using program::decimal_bytes;

namespace {

constexpr double kWidth = 1180, kLeft = 150, kRight = 330, kPitch = 34;

int links_of(const Cluster& cluster, LinkClass link) {
  if (link == LinkClass::kNic) return cluster.nodes;
  if (link == LinkClass::kLeafUp) return cluster.leaves() * cluster.rails();
  return cluster.devices();
}

std::string_view place_of(const Cluster& cluster, LinkClass link) {
  if (link == LinkClass::kNic) return "node";
  if (link == LinkClass::kLeafUp) return cluster.network.rails ? "leaf switch" : "leaf";
  return "device";
}

double share(double bytes, const LinkLoad& link, double seconds) {
  return link.capacity > 0 && seconds > 0 ? bytes / (link.capacity * seconds) : 0;
}

// A bar to the busiest, a mark at the mean.
std::string link_bars(const PlanPage& page) {
  const StepEstimate& estimate = page.estimate;
  double most = 1;
  for (const LinkLoad& link : estimate.traffic.links) most = std::max(most, share(link.busiest, link, estimate.seconds));
  const auto x = [&](double part) { return kLeft + part / most * (kWidth - kLeft - kRight); };
  SvgWriter svg(kWidth);
  double y = 6;
  for (const LinkLoad& link : estimate.traffic.links) {
    const double busiest = share(link.busiest, link, estimate.seconds);
    const double mean = share(link.all / links_of(page.cluster, link.link), link, estimate.seconds);
    svg.text("r", kLeft - 10, y + 15, link_name(link.link));
    svg.rect("rail", kLeft, y, x(1) - kLeft, 22);
    svg.rect(busiest > 1 ? "over" : "load", kLeft, y + 3, x(busiest) - kLeft, 16);
    svg.rect("now", x(mean) - 1.5, y, 3, 22);
    svg.text("", x(most) + 10, y + 15,
             cat(place_of(page.cluster, link.link), " ", link.where, ": ", decimal_bytes(link.busiest), ", ", tenths_text(busiest), "; mean ",
                 tenths_text(mean)));
    y += kPitch;
  }
  svg.line("limit", x(1), 0, x(1), y);
  svg.text("m q", x(1), y + 12, "the whole step");
  svg.text("q", kLeft, y + 12, "bar: the busiest link of the class; black mark: the mean of all");
  return svg.done(y + 18, "load of the links of each class");
}

std::string axes_table(const Traffic& traffic) {
  std::vector<std::string> headers = {"axis", "sent by all ranks"};
  const auto used = [&](size_t link) { return std::ranges::any_of(traffic.axes, [&](const AxisLoad& axis) { return axis.on[link] > 0; }); };
  for (size_t i = 0; i < kLinkClasses; ++i)
    if (used(i)) headers.push_back(cat("over ", link_name(static_cast<LinkClass>(i))));
  headers.emplace_back("leaves its node");
  TableWriter table(headers, "Bytes of a step, counted send by send");
  constexpr auto kNic = static_cast<size_t>(LinkClass::kNic);
  for (const AxisLoad& axis : traffic.axes) {
    std::vector<std::string> cells = {axis.axis, decimal_bytes(axis.sent)};
    for (size_t i = 0; i < kLinkClasses; ++i)
      if (used(i)) cells.push_back(decimal_bytes(axis.on[i]));
    cells.push_back(axis.sent > 0 ? tenths_text(axis.on[kNic] / axis.sent) : "-");
    table.row(cells);
  }
  return table.done();
}

std::string calls_table(const std::vector<CallRow>& calls, double step) {
  if (calls.empty()) return "";
  TableWriter table({"axis", "<collective", "<algorithm", "<group", "calls", "a rank sends", "seconds, hidden or not"},
                    "Collectives of one rank in a step: of the stage that needs most memory");
  for (const CallRow& row : calls)
    table.row({row.axis, row.collective, row.algorithm, shape_text(row.shape), decimal(row.calls, 0), decimal_bytes(row.bytes),
               seconds_text(row.seconds, step)});
  return table.done();
}

std::string sentences(const PlanPage& page) {
  std::string html = "<ul>\n";
  for (const std::string& sentence : explain_traffic(page.estimate.traffic, page.cluster, page.estimate.seconds)) html += cat("<li>",
                                                                                                                              escaped(sentence), "</li>\n");
  return html + "</ul>\n";
}

}  // namespace

std::string network_section(const PlanPage& page) {
  std::string html = cat("<section id=\"network\"><h2>What the network carries</h2>\n<p>", escaped(describe(page.cluster)), ". Order of ranks: ",
                         escaped(order_name(page.order)), ".</p>\n");
  const Traffic& traffic = page.estimate.traffic;
  if (traffic.axes.empty() && traffic.links.empty()) html += "<p class=\"q\">No rank sends anything, or the traffic was not counted.</p>\n";
  if (!traffic.axes.empty() && page.estimate.seconds > 0) html += sentences(page);
  html += cat("<h3>Ranks on the topology</h3>\n", topology_svg(page));
  if (!traffic.links.empty()) html += cat("<h3>The busiest link of each class</h3>\n", link_bars(page));
  if (!traffic.axes.empty()) html += axes_table(traffic);
  return cat(html, calls_table(page.calls, page.estimate.seconds), "</section>\n");
}

}  // namespace lockstep::plan
