#include <algorithm>

#include "apps/lockstep/plan_report.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/findings.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::apps {
namespace {

using plan::SearchResult;
using plan::StepEstimate;

constexpr size_t kMostOfFront = 8;  // without --table

std::string section(const std::string& heading, const std::string& body) { return body.empty() ? "" : cat("\n", heading, "\n", body); }

std::string title_of(const PlanQuestion& question, int ranks) {
  const std::string preset = question.loaded.config.model.preset;
  const std::string family = split(arch::describe(question.model), ' ').front();
  return cat(preset.empty() ? family : preset, " on ", plan::count_text(ranks), " x ", question.cluster.device.name);
}

std::string slow_text(const plan::Slowness& slow) {
  std::vector<std::string> parts;
  for (const auto& [node, share] : slow.nodes) parts.push_back(cat("node ", node, " at ", plan::tenths_text(share)));
  for (const auto& [node, share] : slow.nics) parts.push_back(cat("NICs of node ", node, " at ", plan::tenths_text(share)));
  return join(parts, ", ");
}

std::string head(const PlanQuestion& question, const PlanAnswer& answer) {
  std::vector<program::Row> rows = {{"model", arch::describe(question.model)}, {"cluster", plan::describe(question.cluster)}};
  if (answer.layout) {
    const int used = answer.layout->mesh.world_size();
    rows.push_back({"layout", cat(program::describe(*answer.layout), used < question.cluster.devices() ? cat(", on ", used, " devices") : "")});
    const std::string found = cat("the fastest of ", plan::count_text(answer.search.candidates), " that were looked at");
    rows.push_back({"", question.layout ? "as the configuration says" : found});
  }
  for (size_t i = 0; i < question.assumed.size(); ++i) rows.push_back({i == 0 ? "assumed" : "", question.assumed[i]});
  return program::table(rows, 2, 0);
}

std::string slow(const PlanQuestion& question, const PlanAnswer& answer) {
  const double waits = 1 - answer.healthy->seconds / answer.estimate.seconds;
  return cat(plan::compare_text({{"nothing slow", &*answer.healthy}, {slow_text(question.cluster.slow), &answer.estimate}}),
             "all others wait ", plan::tenths_text(std::max(0.0, waits)), " of every step for it\n");
}

std::string none_fits(const PlanQuestion& question, const PlanAnswer& answer) {
  return cat("\ndoes not fit: none of ", plan::count_text(answer.search.candidates), " layouts of ", question.devices,
             " devices is legal and fits; more devices, a smaller batch or memory.offload may do\n",
             section("what rejected them", plan::rejected_text(answer.search)));
}

// The layout of the configuration beside the best.
std::string beside_best(const PlanAnswer& answer) {
  if (answer.search.best.empty()) return "no other layout fits\n";
  const plan::Found& best = answer.search.best[0];
  if (best.candidate == answer.candidate) return "it is the fastest that was found\n";
  const double gain = 1 - best.estimate.seconds / answer.estimate.seconds;
  std::string text = cat("the best is ", plan::describe(best.candidate), "\n");
  text += gain > 0 ? cat("its step takes ", plan::tenths_text(gain), " less\n")
                   : cat("this one is ", plan::tenths_text(-gain), " faster than the best that the search has looked at\n");
  return text + plan::compare_text({{"this", &answer.estimate}, {"the best", &best.estimate}});
}

std::string opposites(const PlanQuestion& question, const PlanAnswer& answer) {
  std::string text;
  for (const Opposite& one : answer.opposites) {
    std::string body = one.said.text + "\n";
    if (one.estimate && answer.layout) {
      body += plan::compare_text({{"this", &answer.estimate}, {one.said.layout, &*one.estimate}});
      body += plan::traffic_text(*one.estimate, question.cluster);
    }
    text += section(cat("why not ", one.said.layout), body);
  }
  return text;
}

std::string front(const SearchResult& search, const plan::Cluster& cluster, bool all) {
  const size_t shown = all ? search.pareto.size() : std::min(kMostOfFront, search.pareto.size());
  std::string text = plan::layouts_text({search.pareto.begin(), search.pareto.begin() + static_cast<std::ptrdiff_t>(shown)}, cluster, false);
  if (shown < search.pareto.size()) text += cat(search.pareto.size() - shown, " more: --table\n");
  return shown > 0 ? text : "";
}

std::string layouts(const PlanQuestion& question, const PlanAnswer& answer, bool all) {
  const SearchResult& search = answer.search;
  std::string text;
  if (question.layout) text += section("beside the best layout", beside_best(answer));
  if (!search.best.empty()) text += section("which layouts are best", plan::layouts_text(search.best, question.cluster, true));
  text += section("what rejected the others", plan::rejected_text(search));
  text += section("none is better in time, memory and devices at once", front(search, question.cluster, all));
  return text + section("how sure is that: constants 10 % less and more, and what the step then takes", plan::sensitivity_text(search));
}

}  // namespace

Launch launch_of(const PlanQuestion& question, const PlanAnswer& answer) {
  const int ranks = answer.layout->mesh.world_size(), nodes = std::max(1, ranks / question.cluster.devices_per_node);
  Launch launch{.train = cat("lockstep train run.toml -n ", ranks),
                .slurm = cat("lockstep launch --print slurm run.toml -n ", ranks, " --nodes ", nodes),
                .flags = plan::launch_flags(answer.candidate, answer.rows_limit)};
  if (question.options.order == plan::Order::kPipelined)
    launch.order = cat("the launcher's host file puts ranks in the order ", plan::order_name(question.options.order), ": rank r is not on device r");
  return launch;
}

plan::PlanPage page_about(const PlanQuestion& question, const PlanAnswer& answer) {
  const program::Layout& layout = *answer.layout;
  plan::PlanPage page{.title = title_of(question, layout.mesh.world_size()),
                      .model = arch::describe(layout.model),
                      .layout = program::describe(layout),
                      .mesh = layout.mesh,
                      .candidate = answer.candidate,
                      .given = question.layout.has_value(),
                      .order = question.options.order,
                      .cluster = question.cluster,
                      .stack = question.stack,
                      .estimate = answer.estimate,
                      .search = answer.search,
                      .what_ifs = answer.what_ifs,
                      .goodput = answer.goodput ? cat(plan::goodput_text(*answer.goodput), "; ", answer.failures) : "",
                      .run = answer.run};
  for (const Opposite& one : answer.opposites) page.why_not.push_back(one.said);
  const Launch launch = launch_of(question, answer);
  page.commands = {{"with the run.toml that --fill=run.toml writes (it is below, too)", launch.train},
                   {"the same as a script for Slurm", launch.slurm},
                   {"flags of the layout, behind any configuration of this model and batch", launch.flags}};
  return page;
}

std::string plan_page(const PlanQuestion& question, const PlanAnswer& answer, const PageOptions& options) {
  std::string text = head(question, answer);
  if (question.calibration) text += section("constants fitted to measured times", plan::calibration_text(*question.calibration));
  if (!answer.layout) return text + none_fits(question, answer) + opposites(question, answer);
  const StepEstimate& estimate = answer.estimate;
  text += section("in short", plan::findings_text(page_about(question, answer)));
  text += section("does it fit", plan::fit_text(estimate, question.cluster, options.all) + answer.ways_out);
  text += section("how long is a step", plan::step_text(estimate, question.cluster, answer.run));
  text += section("what limits it", plan::limits_text(estimate));
  if (answer.healthy) text += section("what is slow costs", slow(question, answer));
  text += section("what is on every link", plan::traffic_text(estimate, question.cluster));
  text += layouts(question, answer, options.all);
  if (!answer.what_ifs.empty()) text += section("what if", plan::what_ifs_text(answer.what_ifs, estimate));
  text += opposites(question, answer);
  if (answer.goodput) text += section("what failures cost", cat(plan::goodput_text(*answer.goodput), "\n", answer.failures, "\n"));
  const Launch launch = launch_of(question, answer);
  return text + section("start it, with the run.toml that --fill=run.toml writes",
                        cat(launch.train, "\n", launch.slurm, "\nthe same as flags: ", launch.flags, "\n", launch.order,
                            launch.order.empty() ? "" : "\n"));
}

}  // namespace lockstep::apps
