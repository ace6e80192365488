#include "lockstep/plan/cluster/links_text.h"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {
namespace {

using program::decimal_bytes;

constexpr double kWorthSaying = 1e-3;  // of all bytes
constexpr double kHidden = 0.25;       // of a step: what is below it can be hidden behind computing
constexpr double kTenth = 0.1;         // of a step: gradients move at its end, within about as long as the last backward takes

std::string share_text(double share) {
  if (share <= 0) return "0 %";
  if (share < 0.001) return "< 0.1 %";
  char text[32];
  std::snprintf(text, sizeof text, share < 0.1 ? "%.1f %%" : "%.0f %%", share * 100);
  return text;
}
std::string part_text(double share) { return share <= 0 ? "none" : share >= 0.9995 ? "all" : share_text(share); }
std::string seconds_text(double seconds) {
  char text[32];
  const char* const format = seconds >= 10 ? "%.0f s" : seconds >= 1 ? "%.1f s" : seconds >= 0.01 ? "%.0f ms" : "%.2g ms";
  std::snprintf(text, sizeof text, format, seconds >= 1 ? seconds : seconds * 1e3);
  return text;
}

// What an axis is for, and whether computing waits for it in every layer.
struct AxisWords {
  std::string_view begins;
  std::string_view words;
  bool in_layers = false;
};
constexpr AxisWords kAxisWords[] = {{"tp", "tensor parallel", true},   {"kv", "shared key/value heads"},
                                    {"cp", "context parallel", true},  {"edp", "data parallel of experts"},
                                    {"etp", "tensor parallel of experts", true},
                                    {"ep", "experts", true},           {"pp", "pipeline"},
                                    {"tied", "tied embedding"},        {"dp", "data parallel"}};
const AxisWords& words_of(const AxisLoad& axis) {
  static constexpr AxisWords kOther = {"", "norm and loss"};
  const auto* const known = std::ranges::find_if(kAxisWords, [&](const AxisWords& words) { return axis.axis.starts_with(words.begins); });
  return known == std::end(kAxisWords) ? kOther : *known;
}
std::string name_of(const AxisLoad& axis) { return cat(axis.axis, " (", words_of(axis).words, ")"); }

double on(const AxisLoad& axis, LinkClass link) { return axis.on[static_cast<size_t>(link)]; }

class Explained {
 public:
  Explained(const Traffic& traffic, const Cluster& cluster, double step) : traffic_(traffic), cluster_(cluster), step_(step) {
    LOCKSTEP_CHECK(step > 0, "a step of ", step, " s");
    for (const AxisLoad& axis : traffic.axes) all_ += axis.sent;
  }

  std::string table() const { return cat(links_table(), "\n", axes_table()); }

  std::vector<std::string> sentences() {
    if (all_ == 0) return {"Nothing is sent: every group has one rank."};
    axes();
    for (const LinkLoad& load : traffic_.links) busy(load);
    for (const AxisLoad& axis : traffic_.axes)
      if (worth_saying(axis) && cluster_.nodes > 1) elsewhere(axis);
    pipeline();
    leaves();
    if (traffic_.reduction > 0)
      say("Synchronising gradients and parameters moves ", decimal_bytes(traffic_.reduction), " in all, ",
          decimal_bytes(traffic_.reduction / traffic_.ranks), " from each rank on average.");
    return std::move(sentences_);
  }

 private:
  template <typename... Parts>
  void say(const Parts&... parts) {
    sentences_.push_back(cat(parts...));
  }
  bool worth_saying(const AxisLoad& axis) const { return axis.sent >= kWorthSaying * all_; }
  std::string link_words(LinkClass link) const {
    if (link != LinkClass::kDomain) return std::string(link_name(link));
    switch (cluster_.device.generation) {
      case Generation::kCpu:
        return "memory";
      case Generation::kCdna:
        return "xGMI";
      default:
        return std::string(link_name(link));
    }
  }
  std::string domain_words() const {
    return cluster_.device.generation == Generation::kCpu ? "a node" : cat("an ", link_words(LinkClass::kDomain), " domain");
  }
  const LinkLoad* load_of(LinkClass link) const {
    const auto found = std::ranges::find(traffic_.links, link, &LinkLoad::link);
    return found == traffic_.links.end() ? nullptr : &*found;
  }
  double busy_share(const LinkLoad& load) const { return load.capacity > 0 ? load.busiest / load.capacity / step_ : 0; }

  std::string where(const LinkLoad& load) const {
    switch (load.link) {
      case LinkClass::kDomain:
      case LinkClass::kHost:
        return cat("device ", load.where);
      case LinkClass::kNic:
        return cat("node ", load.where);
      case LinkClass::kLeafUp:
        return cat("leaf ", load.where);
    }
    throw InternalError("no such class of links");
  }

  std::string links_table() const {
    std::vector<program::Row> rows = {{"link", "busiest", "carries", "of", "busy", "all of them"}};
    for (const LinkLoad& load : traffic_.links)
      rows.push_back({link_words(load.link), load.busiest > 0 ? where(load) : "-", decimal_bytes(load.busiest),
                      load.capacity > 0 ? cat(decimal_bytes(load.capacity), "/s") : "?", load.capacity > 0 ? share_text(busy_share(load)) : "?",
                      decimal_bytes(load.all)});
    return program::table(rows, 2, 4);
  }

  std::string axes_table() const {
    std::vector<program::Row> rows = {{"axis", "sent", "of all"}};
    for (const LinkLoad& load : traffic_.links) rows[0].push_back(link_words(load.link));
    for (const AxisLoad& axis : traffic_.axes) {
      rows.push_back({axis.axis, decimal_bytes(axis.sent), share_text(all_ > 0 ? axis.sent / all_ : 0)});
      for (const LinkLoad& load : traffic_.links) rows.back().push_back(on(axis, load.link) > 0 ? decimal_bytes(on(axis, load.link)) : "-");
    }
    return program::table(rows, 1, rows[0].size() - 1);
  }

  void axes() {
    double rest = 0;
    for (const AxisLoad& axis : traffic_.axes) {
      if (!worth_saying(axis)) {
        rest += axis.sent;
        continue;
      }
      const double nic = on(axis, LinkClass::kNic), up = on(axis, LinkClass::kLeafUp);
      std::string text = cat(name_of(axis), " sends ", decimal_bytes(axis.sent), " a step");
      if (nic == 0)
        text += cluster_.nodes > 1 ? ", none of it over a NIC" : "";
      else
        text += cat(", ", part_text(nic / axis.sent), " of it over NICs");
      if (nic > 0 && load_of(LinkClass::kLeafUp) != nullptr) text += cat(", ", part_text(up / axis.sent), " of it between leaves");
      say(text, ".");
    }
    if (rest > 0) say("All other axes together send ", decimal_bytes(rest), ".");
  }

  void busy(const LinkLoad& load) {
    if (load.busiest == 0 || load.capacity <= 0) return;
    const char* const place = load.link == LinkClass::kNic ? "The NICs of " : load.link == LinkClass::kLeafUp ? "The links to the spines of " : "";
    const std::string port = load.link == LinkClass::kDomain || load.link == LinkClass::kHost ? cat("The ", link_words(load.link), " port of ") : place;
    say(port, where(load), ", the busiest, ", port == place ? "carry " : "carries ", decimal_bytes(load.busiest), " one way: ",
        share_text(busy_share(load)), " of what ", decimal_bytes(load.capacity), "/s could in a step of ", seconds_text(step_), ".");
  }

  // What the bytes of an axis would take on the other side of a node's border.
  void elsewhere(const AxisLoad& axis) {
    if (traffic_.ranks == 0 || cluster_.nic_of_device() <= 0) return;
    const double of_rank = axis.sent / traffic_.ranks, on_nics = of_rank / cluster_.nic_of_device();
    const double nic = on(axis, LinkClass::kNic) / axis.sent;
    if (nic == 0) {
      if (on_nics < kHidden * step_)
        say(name_of(axis), " would take ", seconds_text(on_nics), " of the step on the NICs of its rank: it could leave the node as far as bandwidth ",
            "goes.");
      else
        say(name_of(axis), " would take ", seconds_text(on_nics), " of a step of ", seconds_text(step_),
            " on the NICs of its rank: it belongs inside ", domain_words(), ".");
    } else if (words_of(axis).in_layers && cluster_.domain > 1 && cluster_.device.link > 0) {
      say(name_of(axis), ", which every layer waits for, keeps NICs busy for ", seconds_text(nic * on_nics), " of the step; inside ", domain_words(),
          " the same bytes take ", seconds_text(nic * of_rank / cluster_.device.link), ".");
    }
  }

  void pipeline() {
    const LinkLoad* const up = load_of(LinkClass::kLeafUp);
    for (const AxisLoad& axis : traffic_.axes) {
      if (axis.axis != "pp" || up == nullptr || on(axis, LinkClass::kNic) == 0) continue;
      const double over = on(axis, LinkClass::kLeafUp);
      if (over == 0)
        say("Neighbours of the pipeline stand under one leaf: the spines carry nothing of it.");
      else
        say("Of what pipeline stages send, ", part_text(over / axis.sent), " crosses the spines, ", share_text(over / up->all),
            " of all that does; ranks in the order ", order_name(Order::kPipelined), " put the stages of a pipeline side by side.");
    }
  }

  void leaves() {
    const LinkLoad* const up = load_of(LinkClass::kLeafUp);
    if (up == nullptr) return;
    if (up->all == 0) return say("Nothing crosses the spines.");
    double data = 0;
    for (const AxisLoad& axis : traffic_.axes)
      if (axis.axis.starts_with("dp") || axis.axis.starts_with("edp")) data += on(axis, LinkClass::kLeafUp);
    const double busy = busy_share(*up);
    std::string text = cat("Between leaves, data parallel sends ", part_text(data / up->all),
                           " of the bytes: the busiest leaf is through with what it sends in ", seconds_text(busy * step_), ", ", share_text(busy),
                           " of the step");
    if (busy > kTenth)
      text += "; what computing does not hide of it lengthens the step, and more bandwidth there shortens it";
    else
      text += cat("; with an oversubscription of ", ratio_text(cluster_.network.oversubscription * kTenth / busy), ":1 it would take a tenth of it");
    say(text, ".");
    if (cluster_.forwards())
      say("A send to a NIC of another index goes over ", link_words(LinkClass::kDomain), " inside its node first, as NCCL forwards it (PXN).");
  }
  static std::string ratio_text(double ratio) {
    if (ratio > 1000) return "more than 1000";
    char text[32];
    std::snprintf(text, sizeof text, ratio < 10 ? "%.1f" : "%.0f", ratio);
    return text;
  }

  const Traffic& traffic_;
  const Cluster& cluster_;
  const double step_;
  double all_ = 0;
  std::vector<std::string> sentences_;
};

}  // namespace

std::string traffic_table(const Traffic& traffic, const Cluster& cluster, double step_seconds) {
  return Explained(traffic, cluster, step_seconds).table();
}

std::vector<std::string> explain_traffic(const Traffic& traffic, const Cluster& cluster, double step_seconds) {
  return Explained(traffic, cluster, step_seconds).sentences();
}

}  // namespace lockstep::plan
