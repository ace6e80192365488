#include "lockstep/plan/time/goodput.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "lockstep/arch/params.h"
#include "lockstep/base/check.h"
#include "lockstep/base/units.h"

namespace lockstep::plan {
namespace {

constexpr double kHour = 3600;

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, share > 0 && share < 0.001 ? "%.2f %%" : "%.1f %%", share * 100);
  return text;
}

// Of what is waited for on the axes that begin so, the share that goes over NICs.
double over_nics(const Traffic& traffic, std::initializer_list<std::string_view> begins, double without_traffic) {
  if (traffic.axes.empty()) return without_traffic;
  double sent = 0, nic = 0;
  for (const AxisLoad& axis : traffic.axes)
    for (const std::string_view begin : begins)
      if (axis.axis.starts_with(begin)) {
        sent += axis.sent;
        nic += axis.on[static_cast<size_t>(LinkClass::kNic)];
      }
  return sent > 0 ? nic / sent : 0;
}

struct Slowest {
  int node = -1;
  double share = 1;
};
Slowest slowest(const std::map<int, double>& shares) {
  Slowest found;
  for (const auto& [node, share] : shares)
    if (share < found.share) found = {.node = node, .share = share};
  return found;
}

}  // namespace

double young_interval(double save, double between_failures) { return std::sqrt(2 * save * between_failures); }

double daly_interval(double save, double between_failures) {
  const double ratio = save / (2 * between_failures);
  if (ratio >= 1) return between_failures;
  return young_interval(save, between_failures) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - save;
}

double checkpoint_bytes(const program::Layout& layout) {
  const program::Layout whole = program::reference_layout(layout);
  const std::vector<arch::ParamSpec> table = whole.param_table(0);
  return static_cast<double>(arch::update_bytes(table, whole.flat_layout(table)));
}

SaveSeconds save_seconds(const Cluster& cluster, double bytes, const SaveOptions& options) {
  const bool on_host = cluster.device.generation == Generation::kCpu;
  const double host = on_host ? cluster.device.memory_bandwidth : cluster.device.pcie;
  if (cluster.disk_bandwidth <= 0 || host <= 0) {
    const char* const lacks = cluster.disk_bandwidth <= 0 ? "disk_bandwidth of a node" : on_host ? "memory_bandwidth of a device" : "pcie of a device";
    throw ConfigError({.code = "LS1157",
                       .what = cat("the time of a checkpoint needs ", lacks, ", and ", cluster.name.empty() ? "the cluster" : cluster.name, " says none"),
                       .way_out = "add it to the cluster's file"});
  }
  const int ranks = options.ranks > 0 ? options.ranks : cluster.devices();
  const int nodes = (ranks - 1) / cluster.devices_per_node + 1;
  const double copy = bytes / ranks / host, disk = bytes / nodes / cluster.disk_bandwidth;
  return {.blocked = options.asynchronous ? copy : copy + disk, .complete = copy + disk, .read = copy + disk};
}

Goodput goodput_of(const Cluster& cluster, const SaveSeconds& save, const FailureOptions& options) {
  const int nodes = options.nodes > 0 ? options.nodes : cluster.nodes;
  Goodput goodput{.interval = options.interval, .save = save, .restart = options.restart + save.read};
  if (cluster.failures > 0) goodput.between_failures = kHour / (cluster.failures * nodes);
  const double mean = goodput.between_failures;
  if (std::isinf(mean)) {
    goodput.saving = goodput.interval > 0 ? save.blocked / (goodput.interval + save.blocked) : 0;
    goodput.useful = 1 - goodput.saving;
    return goodput;
  }
  if (goodput.interval <= 0) goodput.interval = std::max(daly_interval(save.blocked, mean), (save.complete - save.blocked) / options.disk_share);
  LOCKSTEP_CHECK(goodput.interval > 0, "saves of ", save.blocked, " s, failures every ", mean, " s");
  // What a save has not finished is lost with a failure: as if restarting took so much longer.
  const double unfinished = save.complete - save.blocked, restart = (goodput.restart + unfinished) / mean;
  const double stretch = mean * std::exp(restart) * std::expm1((goodput.interval + save.blocked) / mean);
  goodput.useful = goodput.interval / stretch;
  goodput.saving = save.blocked / stretch;
  const double lost = -std::expm1(-restart);  // a failure every `mean`, and others while the job restarts
  goodput.restarting = lost * goodput.restart / (goodput.restart + unfinished);
  goodput.repeating = 1 - goodput.useful - goodput.saving - goodput.restarting;
  return goodput;
}

std::string goodput_text(const Goodput& goodput) {
  if (std::isinf(goodput.between_failures))
    return goodput.interval > 0 ? cat("no failures are counted; a checkpoint every ", format_duration(goodput.interval), " takes ",
                                      percent(goodput.saving), " of the time")
                                : std::string("no failures are counted, and no checkpoints");
  const std::string saves = cat("a checkpoint every ", format_duration(goodput.interval), " (training stands for ", format_duration(goodput.save.blocked),
                                ", on disk after ", format_duration(goodput.save.complete), ")");
  return cat("some node fails every ", format_duration(goodput.between_failures), "; ", saves, "; ", percent(goodput.useful),
             " of the time is training, ", percent(goodput.saving), " saving, ", percent(goodput.repeating), " work done again, ",
             percent(goodput.restarting), " restarting (", format_duration(goodput.restart), " each)");
}

Straggling straggling(const StepEstimate& healthy, const Slowness& slow) {
  const Slowest node = slowest(slow.nodes), nics = slowest(slow.nics);
  const Breakdown& of = healthy.breakdown;
  const Traffic& traffic = healthy.traffic;
  const double computes = of.products + of.attention + of.pointwise + of.recompute + of.optimizer + of.host + of.bubble;
  const double sends = of.tensor * over_nics(traffic, {"tp", "kv"}, 0) + of.context * over_nics(traffic, {"cp"}, 0) +
                       of.experts * over_nics(traffic, {"ep", "etp"}, 0) + of.pipeline * over_nics(traffic, {"pp"}, 1) +
                       of.data * over_nics(traffic, {"dp", "edp"}, 1);
  const double more = computes * (1 / node.share - 1) + sends * (1 / nics.share - 1);
  const double seconds = healthy.seconds + more;
  return {.seconds = seconds, .waits = seconds > 0 ? more / seconds : 0, .node = node.node, .nics = nics.node};
}

double step_money(const Cluster& cluster, int devices, double seconds) { return cluster.price * devices * seconds / kHour; }

Money money_of(const Cluster& cluster, const StepEstimate& estimate, const MoneyOptions& options) {
  LOCKSTEP_CHECK(options.useful > 0 && estimate.tokens > 0, "useful ", options.useful, ", tokens of a step ", estimate.tokens);
  const int devices = options.devices > 0 ? options.devices : cluster.devices();
  Money money{.step = step_money(cluster, devices, estimate.seconds)};
  money.token = money.step / estimate.tokens;
  money.steps = options.tokens > 0 ? std::ceil(options.tokens / estimate.tokens) : 1;
  const double seconds = money.steps * estimate.seconds / options.useful;
  money.hours = seconds / kHour;
  money.run = step_money(cluster, devices, seconds);
  return money;
}

}  // namespace lockstep::plan
