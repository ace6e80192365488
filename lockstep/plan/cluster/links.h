// What a step puts on every class of links, by counting the sends of the predicted ledger: not by a formula for an axis.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/plan/cluster/placement.h"
#include "lockstep/program/predict/steps.h"
#include "lockstep/program/program.h"

namespace lockstep::plan {

// A send takes the first of these that its two devices share: a domain, a node; else the NICs of both nodes, and the links between their
// leaf switch and the spines where it goes to another leaf. Under rails a leaf switch is one of a leaf group's, that of the NIC's index.
// A send to another index goes over links of the domain to the node's device of that index first, as NCCL has it (Cluster::forwards);
// where a node is no domain, it crosses the spines.
enum class LinkClass { kDomain, kNic, kLeafUp, kHost };
inline constexpr size_t kLinkClasses = 4;
std::string_view link_name(LinkClass link);  // "NVLink", "NIC", "leaf up-link", "PCIe"

// Of one axis of the ledger ("tp", "dp", "pp", "cp", "ep", ...). Bytes of a step.
struct AxisLoad {
  std::string axis{};
  double sent = 0;                                // by all ranks
  std::array<double, kLinkClasses> on{};          // of that what goes over links of each class; on[kLeafUp] is part of on[kNic], as is what
                                                  // on[kDomain] has of forwarded bytes
};
struct LinkLoad {
  LinkClass link = LinkClass::kNic;
  double all = 0;         // bytes over all links of the class, one direction
  double busiest = 0;     // over the one that is busy longest: a device's port, a node's NICs together, a leaf's links to the spines together
  int where = 0;          // which device, node or leaf that is; under rails leaf switch (leaf group) x (rails) + (rail)
  double capacity = 0;    // bytes/s of that one, one direction, as built: payloads get Network::efficiency, DeviceKind::link_efficiency of it
};
struct NodeLoad {
  double out = 0, in = 0;  // bytes that leave and reach the node's NICs
};
struct Traffic {
  std::vector<AxisLoad> axes{};     // most bytes first
  std::vector<LinkLoad> links{};    // those of the cluster
  std::vector<NodeLoad> nodes{};    // at most 4096: the first
  double reduction = 0;             // bytes that all ranks send for one synchronisation of gradients and parameters: in a step over UNSHARD,
                                    // REDUCE_GRAD, REDUCE_SHARD, PUSH and PULL. Zero 3, and 2 without a pipeline, synchronise for every microbatch
  int ranks = 0;                    // that take part
};
// Ranks that are alike are counted once. Sums equal those of program::predict_ledger over all ranks (as doubles: exact below 2^53 bytes);
// calls whose size the data makes count as under balanced routing.
Traffic traffic_of(const program::Layout& layout, const program::Program& program, const Placement& placement);
// Of a step that is read off shorter ones.
Traffic traffic_of(const program::JudgedSteps& steps, const Placement& placement);

}  // namespace lockstep::plan
