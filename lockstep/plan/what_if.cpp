#include "lockstep/plan/what_if.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/plan_text.h"
#include "lockstep/plan/time/cluster_what_ifs.h"

namespace lockstep::plan {
namespace {

constexpr std::string_view kSlow = "something is slow", kOtherwise = "the same cluster, run otherwise", kHardware = "other hardware",
                           kRate = "a rate of the hardware is not what it says";
constexpr std::array kGroups = {kSlow, kOtherwise, kHardware, kRate};
constexpr double kUneven = 1.2;
constexpr double kWorthSaying = 0.001;  // of a step

class Conditions {
 public:
  Conditions(const Setting& now, const StepEstimate& estimate) : now_(now), estimate_(estimate), plain_(now.options) {
    plain_.traffic = plain_.spans = false;
  }

  std::vector<WhatIf> all() {
    cluster();
    group_ = kOtherwise;
    order();
    work();
    if (now_.cluster.device.generation != Generation::kCpu) devices();
    // Each group in one piece.
    const auto place = [](const WhatIf& one) { return std::ranges::find(kGroups, one.group) - kGroups.begin(); };
    std::ranges::stable_sort(found_, {}, place);
    return std::move(found_);
  }

 private:
  void add(std::string what, const Cluster& cluster, const Stack& stack, const EstimateOptions& options) {
    const StepEstimate then = estimate_step(now_.layout, cluster, stack, options);
    found_.push_back({.what = std::move(what), .seconds = then.seconds, .fits = then.fits, .note = note_of(estimate_, then, cluster), .group = group_});
  }
  void add(std::string what, const Cluster& cluster) { add(std::move(what), cluster, now_.stack, plain_); }

  void order() {
    const mesh::Mesh& mesh = now_.layout.mesh;
    if (mesh.degree(mesh::Axis::kPp) == 1 || mesh.degree(now_.layout.samples()) == 1) return;
    EstimateOptions other = plain_;
    other.order = plain_.order == Order::kUsual ? Order::kPipelined : Order::kUsual;
    add(cat("ranks in the order ", order_name(other.order)), now_.cluster, now_.stack, other);
  }

  void cluster() {
    group_ = kSlow;
    if (now_.cluster.slow != Slowness{}) add("nothing slow", healthy(now_.cluster));
    for (const ClusterWhatIf& what_if : usual_what_ifs(now_.cluster)) {
      const bool slow = what_if.cluster.slow != now_.cluster.slow, rate = what_if.name.ends_with("10 %");
      group_ = slow ? kSlow : rate ? kRate : kHardware;
      add(what_if.name, what_if.cluster);
    }
    if (now_.cluster.nodes == 1) return;
    group_ = kHardware;
    Cluster half = now_.cluster;
    half.network.nic /= 2;
    add(cat("NICs of ", format_count(half.network.nic * 8), "b/s"), half);
  }

  // Of what is current; nodes and network stay.
  void devices() {
    group_ = kHardware;
    for (const char* name : {"a100", "h100", "h200", "b200", "mi300x"}) {
      const DeviceKind& device = device_kind(name);
      if (device.name == now_.cluster.device.name) continue;
      Cluster other = now_.cluster;
      other.device = device;
      EstimateOptions options = plain_;
      if (device.flops_fp8 <= 0) options.linears = Linears::kAsLayout;
      add(cat(device.name, options.linears == plain_.linears ? "" : ", without FP8"), other, stack_of(device, usual_kernels(device)), options);
    }
  }

  void work() {
    if (now_.cluster.device.flops_fp8 > 0) {
      EstimateOptions other = plain_;
      other.linears = plain_.linears == Linears::kFp8 ? Linears::kAsLayout : Linears::kFp8;
      add(other.linears == Linears::kFp8 ? "linears in FP8" : "linears as the layout has them, without FP8", now_.cluster, now_.stack, other);
    }
    if (!now_.layout.model.has_experts()) return;
    EstimateOptions other = plain_;
    other.imbalance = plain_.imbalance * kUneven;
    add(cat("the busiest experts' rank with ", number_text(other.imbalance), " times the mean"), now_.cluster, now_.stack, other);
  }

  const Setting& now_;
  const StepEstimate& estimate_;
  EstimateOptions plain_;
  std::string group_{};
  std::vector<WhatIf> found_;
};

}  // namespace

std::vector<WhatIf> what_ifs(const Setting& now, const StepEstimate& estimate) { return Conditions(now, estimate).all(); }

std::string cause_of(const StepEstimate& before, const StepEstimate& after) {
  const auto change = [&](const Term& term) { return after.breakdown.*term.seconds - before.breakdown.*term.seconds; };
  const auto largest = std::ranges::max_element(terms(), {}, [&](const Term& term) { return std::abs(change(term)); });
  const double most = change(*largest);
  if (std::abs(most) < kWorthSaying * before.seconds) return "";
  return cat(largest->label, ": ", seconds_text(std::abs(most), before.seconds), most < 0 ? " less" : " more");
}

std::string note_of(const StepEstimate& before, const StepEstimate& after, const Cluster& cluster) {
  const std::string cause = cause_of(before, after);
  const auto worst = std::ranges::find(after.stages, after.worst_stage, &StageEstimate::stage);
  if (after.fits || worst == after.stages.end()) return cause;
  return cat("does not fit: needs ", format_bytes(worst->reserved), " of ", format_bytes(cluster.device.memory), cause.empty() ? "" : "; ", cause);
}

Cluster healthy(Cluster cluster) {
  cluster.slow = {};
  return cluster;
}

}  // namespace lockstep::plan
