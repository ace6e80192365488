#include "lockstep/plan/time/cluster_what_ifs.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {
namespace {

constexpr double kSlowNode = 0.8, kSlowNics = 0.5;

// A part of a cluster, and what changes it by a factor.
struct Part {
  const char* name;
  bool network;  // means nothing for one node
  void (*scale)(Cluster&, double factor);
};
constexpr Part kParts[] = {
    {"products", false,
     [](Cluster& cluster, double factor) {
       for (double DeviceKind::*const flops : {&DeviceKind::flops_fp32, &DeviceKind::flops_bf16, &DeviceKind::flops_fp8})
         cluster.device.*flops *= factor;
     }},
    {"memory bandwidth", false, [](Cluster& cluster, double factor) { cluster.device.memory_bandwidth *= factor; }},
    {"bandwidth inside a domain", false,
     [](Cluster& cluster, double factor) {
       cluster.device.link *= factor;
       cluster.device.link_to_one *= factor;
     }},
    {"bandwidth of NICs", true, [](Cluster& cluster, double factor) { cluster.network.nic *= factor; }},
    {"latency between nodes", true,
     [](Cluster& cluster, double factor) {
       cluster.network.latency_leaf *= factor;
       cluster.network.latency_spine *= factor;
     }},
};

class WhatIfs {
 public:
  explicit WhatIfs(const Cluster& cluster) : cluster_(cluster) {}

  std::vector<ClusterWhatIf> all() {
    add("node 0 at 80 %", [](Cluster& other) { other.slow.nodes[0] = kSlowNode; });
    if (cluster_.nodes > 1) network();
    for (const Part& part : kParts) {
      if (part.network && cluster_.nodes == 1) continue;
      for (const double factor : {0.9, 1.1})
        add(cat(part.name, factor < 1 ? " -10 %" : " +10 %"), [&](Cluster& other) { part.scale(other, factor); });
    }
    return std::move(found_);
  }

 private:
  template <typename Change>
  void add(std::string name, const Change& change) {
    Cluster other = cluster_;
    change(other);
    found_.push_back({.name = std::move(name), .cluster = std::move(other)});
  }

  void network() {
    add("NICs of node 0 at 50 %", [](Cluster& other) { other.slow.nics[0] = kSlowNics; });
    add(cat(2 * cluster_.nics_per_node, " NICs a node"), [](Cluster& other) { other.nics_per_node *= 2; });
    if (cluster_.leaves() == 1) return;
    for (const double ratio : {1.0, 2.0, 4.0})
      if (ratio != cluster_.network.oversubscription)
        add(cat("oversubscription ", ratio, ":1"), [&](Cluster& other) { other.network.oversubscription = ratio; });
    add(cluster_.network.rails ? "no rails" : "rails", [](Cluster& other) { other.network.rails = !other.network.rails; });
  }

  const Cluster& cluster_;
  std::vector<ClusterWhatIf> found_;
};

std::string print(const char* format, double number) {
  char text[64];
  std::snprintf(text, sizeof text, format, number);
  return text;
}
std::string seconds_text(double seconds) { return seconds < 1 ? print("%.1f ms", seconds * 1e3) : print("%.3f s", seconds); }

}  // namespace

std::vector<ClusterWhatIf> usual_what_ifs(const Cluster& cluster) { return WhatIfs(cluster).all(); }

std::vector<WhatIfSeconds> try_what_ifs(const Cluster& cluster, const std::function<double(const Cluster&)>& step_seconds) {
  std::vector<WhatIfSeconds> tried;
  for (const ClusterWhatIf& what_if : usual_what_ifs(cluster)) tried.push_back({.name = what_if.name, .seconds = step_seconds(what_if.cluster)});
  return tried;
}

std::string what_if_table(const Cluster& cluster, double now, const std::vector<WhatIfSeconds>& what_ifs) {
  LOCKSTEP_CHECK(now > 0, "a step of ", now, " s");
  const bool money = cluster.price > 0;
  std::vector<program::Row> rows = {{"what if", "step", "change"}};
  if (money) rows[0].push_back("a step costs");
  const auto add = [&](const std::string& name, double seconds, const std::string& change) {
    rows.push_back({name, seconds_text(seconds), change});
    if (money) rows.back().push_back(print("%.4g", cluster.price * cluster.devices() * seconds / 3600));
  };
  add("as it is", now, "");
  for (const WhatIfSeconds& what_if : what_ifs) add(what_if.name, what_if.seconds, print("%+.1f %%", (what_if.seconds / now - 1) * 100));
  return program::table(rows, 1, rows[0].size() - 1);
}

}  // namespace lockstep::plan
