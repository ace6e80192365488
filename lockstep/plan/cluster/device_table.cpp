#include "lockstep/plan/cluster/device_table.h"

#include "lockstep/base/units.h"

namespace lockstep::plan {
namespace {

constexpr double kGb = 1e9, kTera = 1e12;
// Memory chips have powers of two: what is sold as 80 GB holds 80 GiB.
constexpr double gib(double count) { return count * static_cast<double>(kGiB); }
constexpr double nic_of(double gigabits) { return gigabits * kGb / 8; }

// Host memory and disks of nodes as they are sold most: 2 TiB and four NVMe disks beside eight switched devices.
UsualNode switched(double gigabits, double host = gib(2048)) {
  return {.devices = 8, .domain = 8, .nic = nic_of(gigabits), .host_memory = host, .disk_bandwidth = 25 * kGb};
}
UsualNode rack(double gigabits) {  // a tray of four with two Grace CPUs of 480 GB
  return {.devices = 4, .domain = 72, .nic = nic_of(gigabits), .host_memory = 960 * kGb, .disk_bandwidth = 25 * kGb};
}
UsualNode cards(double gigabits, int domain = 1) {
  return {.devices = 8, .domain = domain, .nic = nic_of(gigabits), .host_memory = gib(512), .disk_bandwidth = 6 * kGb};
}

// best_bf16 and best_fp8: TFLOP/s of the best shape found (stas00/ml-engineering, MAMF) over those of the data sheet.
// link_efficiency: A100 bus bandwidth of a long ring, 234 GB/s (fit of the tables in VIA-Research/vTrain trace/a100); Hopper and Blackwell NCCL's
// own 20.6 and 40.1 GB/s a link (src/graph/topo.h; SimAI has the same for H100), H800 160 GB/s (arXiv:2412.19437); MI300X 47.7 GB/s of 64
// between two, 312.9 of 448 among eight (stas00/ml-engineering).
constexpr double kA100Links = 0.781, kHopperLinks = 0.824, kBlackwellLinks = 0.802, kVoltaLinks = 0.80, kMeshLinks = 0.72;
constexpr const char* kEngineering = "stas00/ml-engineering, cli99/llm-analysis";
constexpr const char* kSimai = "aliyun/SimAI constants; stas00/ml-engineering";

std::vector<DeviceRow> volta() {
  const DeviceKind cube = {.name = "V100-SXM2-32GB", .generation = Generation::kVolta, .memory = gib(32), .memory_bandwidth = 900 * kGb,
                           .flops_fp32 = 15.7 * kTera, .flops_bf16 = 125 * kTera, .processors = 80, .link = 150 * kGb, .link_to_one = 50 * kGb,
                           .link_efficiency = kVoltaLinks, .pcie = 15.8 * kGb, .watts = 300,
                           .origin = "cli99/llm-analysis; FLOP/s are of fp16, it has no bf16; of its 6 links at most 2 lead to one other"};
  DeviceKind switches = cube;
  switches.name = "V100-SXM3-32GB";
  switches.link_to_one = switches.link;
  switches.watts = 350;
  switches.origin = "cli99/llm-analysis; FLOP/s are of fp16, it has no bf16";
  const UsualNode dgx2 = {.devices = 16, .domain = 16, .nic = nic_of(50), .host_memory = gib(1536), .disk_bandwidth = 25 * kGb};
  return {{cube, switched(50, gib(512)), {"v100", "v100-32", "v100-sxm2"}}, {switches, dgx2, {"v100-sxm3"}}};
}

std::vector<DeviceRow> ampere() {
  const DeviceKind a100 = {.name = "A100-SXM4-80GB", .generation = Generation::kAmpere, .memory = gib(80), .memory_bandwidth = 2039 * kGb,
                           .flops_fp32 = 19.5 * kTera, .flops_bf16 = 312 * kTera, .best_bf16 = 0.869, .processors = 108, .link = 300 * kGb, .link_to_one = 300 * kGb,
                           .link_efficiency = kA100Links, .pcie = 31 * kGb, .watts = 400, .origin = kEngineering};
  DeviceKind small = a100, card = a100, a800 = a100;
  small.name = "A100-SXM4-40GB";
  small.memory = gib(40);
  small.memory_bandwidth = 1555 * kGb;
  card.name = "A100-PCIe-80GB";
  card.memory_bandwidth = 1935 * kGb;
  card.best_bf16 = 0.811;
  card.link = card.link_to_one = 0;
  card.watts = 300;
  a800.name = "A800-SXM4-80GB";
  a800.link = a800.link_to_one = 200 * kGb;
  a800.origin = "aliyun/SimAI constants: an A100 with 8 of its 12 links";
  return {{a100, switched(200), {"a100", "a100-80"}},
          {small, switched(200, gib(1024)), {"a100-40"}},
          {card, cards(50), {"a100-pcie"}},
          {a800, switched(200), {"a800"}}};
}

std::vector<DeviceRow> hopper() {
  const DeviceKind h100 = {.name = "H100-SXM5-80GB", .generation = Generation::kHopper, .memory = gib(80), .memory_bandwidth = 3350 * kGb,
                           .flops_fp32 = 67 * kTera, .flops_bf16 = 989 * kTera, .flops_fp8 = 1979 * kTera, .best_bf16 = 0.803,
                           .best_fp8 = 0.709, .processors = 132, .link = 450 * kGb,
                           .link_to_one = 450 * kGb, .link_efficiency = kHopperLinks, .pcie = 63 * kGb, .watts = 700, .origin = kEngineering};
  DeviceKind capped = h100, card = h100, bridged = h100, h200 = h100, h800 = h100, h20 = h100, grace = h100;
  capped.name = "H100-SXM5-96GB-HBM2e-500W";
  capped.memory = gib(96);
  capped.memory_bandwidth = 2400 * kGb;
  capped.watts = 500;
  capped.origin = "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md";
  card.name = "H100-PCIe-80GB";
  card.memory_bandwidth = 2000 * kGb;
  card.flops_fp32 = 51 * kTera;
  card.flops_bf16 = 756 * kTera;
  card.flops_fp8 = 1513 * kTera;
  card.processors = 114;
  card.link = card.link_to_one = 0;
  card.watts = 350;
  bridged.name = "H100-NVL-94GB";
  bridged.memory = gib(94);
  bridged.memory_bandwidth = 3900 * kGb;
  bridged.flops_bf16 = 835 * kTera;
  bridged.flops_fp8 = 1671 * kTera;
  bridged.link = bridged.link_to_one = 300 * kGb;
  bridged.watts = 400;
  h200.name = "H200-SXM5-141GB";
  h200.memory = gib(141);
  h200.memory_bandwidth = 4800 * kGb;
  h200.best_fp8 = 0.734;
  h800.name = "H800-SXM5-80GB";
  h800.link = h800.link_to_one = 200 * kGb;
  h800.link_efficiency = 0.80;
  h800.origin = "aliyun/SimAI constants, arXiv:2412.19437: an H100 with 8 of its 18 links";
  h20.name = "H20-SXM-96GB";
  h20.memory = gib(96);
  h20.memory_bandwidth = 4000 * kGb;
  h20.flops_bf16 = 148 * kTera;
  h20.flops_fp8 = 296 * kTera;
  h20.processors = 78;
  h20.watts = 400;
  h20.origin = kSimai;
  for (DeviceKind* unknown : {&capped, &card, &bridged, &h20}) unknown->best_bf16 = unknown->best_fp8 = 0;
  grace.name = "GH200-96GB";
  grace.memory = gib(96);
  grace.memory_bandwidth = 4000 * kGb;
  grace.best_bf16 = 0.838;
  grace.best_fp8 = 0.776;
  grace.link = grace.link_to_one = 0;
  grace.pcie = 450 * kGb;
  grace.watts = 900;
  grace.origin = "stas00/ml-engineering; its host is a Grace CPU behind NVLink-C2C; 900 W are those of the version with 144 GB";
  const UsualNode alone = {.devices = 1, .domain = 1, .nic = nic_of(400), .host_memory = 480 * kGb, .disk_bandwidth = 6 * kGb};
  return {{h100, switched(400), {"h100", "h100-80", "h100-sxm", "h100-sxm5"}},
          {capped, switched(400), {"h100-500w", "h100-96"}},
          {card, cards(100), {"h100-pcie"}},
          {bridged, cards(100, 2), {"h100-nvl"}},
          {h200, switched(400), {"h200"}},
          {h800, switched(400), {"h800"}},
          {h20, switched(400), {"h20"}},
          {grace, alone, {"gh200"}}};
}

std::vector<DeviceRow> blackwell() {
  const DeviceKind b200 = {.name = "B200-SXM-180GB", .generation = Generation::kBlackwell, .memory = gib(180), .memory_bandwidth = 8000 * kGb,
                           .flops_fp32 = 80 * kTera, .flops_bf16 = 2250 * kTera, .flops_fp8 = 4500 * kTera, .processors = 148, .link = 900 * kGb,
                           .link_to_one = 900 * kGb, .link_efficiency = kBlackwellLinks, .pcie = 63 * kGb, .watts = 1000,
                           .origin = "stas00/ml-engineering, pytorch/torchtitan utils.py; 180 of the 192 GB built in can be used"};
  DeviceKind b300 = b200, gb200 = b200, gb300 = b200;
  b300.name = "B300-SXM-288GB";
  b300.memory = 288 * kGb;  // drivers report 275040 MiB
  b300.origin = kEngineering;
  gb200.name = "GB200-NVL72";
  gb200.memory = gib(186);
  gb200.flops_bf16 = 2500 * kTera;
  gb200.flops_fp8 = 5000 * kTera;
  gb200.watts = 1200;
  gb200.origin = "stas00/ml-engineering, pytorch/torchtitan utils.py; NVIDIA's benchmarks divide by 2450 and 4900 TFLOP/s";
  gb300 = gb200;
  gb300.name = "GB300-NVL72";
  gb300.memory = 288 * kGb;
  gb300.pcie = 126 * kGb;
  gb300.watts = 1400;
  gb300.origin = kEngineering;
  return {{b200, switched(400), {"b200"}}, {b300, switched(800), {"b300"}}, {gb200, rack(400), {"gb200"}}, {gb300, rack(800), {"gb300"}}};
}

std::vector<DeviceRow> cdna() {
  const DeviceKind mi300x = {.name = "MI300X", .generation = Generation::kCdna, .memory = gib(192), .memory_bandwidth = 5300 * kGb,
                             .flops_fp32 = 163.4 * kTera, .flops_bf16 = 1300 * kTera, .flops_fp8 = 2610 * kTera, .best_bf16 = 0.514, .processors = 304,
                             .link = 448 * kGb, .link_to_one = 64 * kGb, .link_efficiency = kMeshLinks, .pcie = 63 * kGb, .watts = 750,
                             .origin = kEngineering};
  DeviceKind mi325x = mi300x, mi355x = mi300x;
  mi325x.name = "MI325X";
  mi325x.memory = gib(256);
  mi325x.memory_bandwidth = 6000 * kGb;
  mi325x.best_bf16 = 0.604;
  mi325x.watts = 1000;
  mi355x.name = "MI355X";
  mi355x.memory = gib(288);
  mi355x.memory_bandwidth = 8000 * kGb;
  mi355x.flops_fp32 = 157.3 * kTera;
  mi355x.flops_bf16 = 2500 * kTera;
  mi355x.flops_fp8 = 5000 * kTera;
  mi355x.best_bf16 = 0.626;
  mi355x.processors = 256;
  mi355x.link = 535.5 * kGb;
  mi355x.link_to_one = 76.5 * kGb;
  mi355x.watts = 1400;
  const DeviceKind mi250x = {.name = "MI250X", .generation = Generation::kCdna, .memory = gib(64), .memory_bandwidth = 1640 * kGb,
                             .flops_fp32 = 23.95 * kTera, .flops_bf16 = 191.5 * kTera, .processors = 110, .link = 175 * kGb,
                             .link_to_one = 50 * kGb, .link_efficiency = kMeshLinks, .pcie = 31 * kGb, .watts = 280,
                             .origin = "stas00/ml-engineering, pytorch/torchtitan utils.py; one of the two dies of a package, half of its numbers"};
  return {{mi250x, switched(100, gib(512)), {"mi250x"}},
          {mi300x, switched(400), {"mi300x"}},
          {mi325x, switched(400), {"mi325x"}},
          {mi355x, switched(400), {"mi355x"}}};
}

std::vector<DeviceRow> workstation() {
  const DeviceKind l40s = {.name = "L40S-48GB", .generation = Generation::kOther, .memory = gib(48), .memory_bandwidth = 864 * kGb,
                           .flops_fp32 = 91.6 * kTera, .flops_bf16 = 362 * kTera, .flops_fp8 = 733 * kTera, .processors = 142,
                           .pcie = 31 * kGb, .watts = 350, .origin = "stas00/ml-engineering"};
  const DeviceKind rtx4090 = {.name = "RTX-4090-24GB", .generation = Generation::kOther, .memory = gib(24), .memory_bandwidth = 1008 * kGb,
                              .flops_fp32 = 82.6 * kTera, .flops_bf16 = 165.2 * kTera, .flops_fp8 = 330.3 * kTera, .processors = 128,
                              .pcie = 31 * kGb, .watts = 450, .origin = "data sheet, dense with fp32 sums; copies between devices go through host memory"};
  const DeviceKind rtx5090 = {.name = "RTX-5090-32GB", .generation = Generation::kBlackwell, .memory = gib(32), .memory_bandwidth = 1792 * kGb,
                              .flops_fp32 = 104.8 * kTera, .flops_bf16 = 209.5 * kTera, .flops_fp8 = 419 * kTera, .processors = 170,
                              .pcie = 63 * kGb, .watts = 575, .origin = "data sheet, dense with fp32 sums"};
  const DeviceKind rtx3090 = {.name = "RTX-3090-24GB", .generation = Generation::kAmpere, .memory = gib(24), .memory_bandwidth = 936 * kGb,
                              .flops_fp32 = 35.6 * kTera, .flops_bf16 = 71 * kTera, .processors = 82, .pcie = 31 * kGb, .watts = 350,
                              .origin = "data sheet, dense with fp32 sums; without the bridge that joins two"};
  const DeviceKind a6000 = {.name = "RTX-A6000-48GB", .generation = Generation::kAmpere, .memory = gib(48), .memory_bandwidth = 768 * kGb,
                            .flops_fp32 = 38.7 * kTera, .flops_bf16 = 154.85 * kTera, .processors = 84, .link = 56.25 * kGb,
                            .link_to_one = 56.25 * kGb, .link_efficiency = kA100Links, .pcie = 31 * kGb, .watts = 300,
                            .origin = "cli99/llm-analysis, pytorch/torchtitan utils.py; a bridge joins two"};
  return {{rtx3090, cards(10), {"rtx3090", "rtx-3090", "3090"}},
          {a6000, cards(10, 2), {"a6000", "rtx-a6000"}},
          {l40s, cards(50), {"l40s"}},
          {rtx4090, cards(10), {"rtx4090", "rtx-4090", "4090"}},
          {rtx5090, cards(10), {"rtx5090", "rtx-5090", "5090"}}};
}

// 24 Ethernet ports on the chip: 21 to the seven others of its node, 3 to other nodes. Of each a payload gets what it gets of a RoCE NIC.
std::vector<DeviceRow> gaudi() {
  constexpr double kEthernet = 0.94;
  const DeviceKind gaudi2 = {.name = "Gaudi2-96GB", .generation = Generation::kOther, .memory = gib(96), .memory_bandwidth = 2460 * kGb,
                             .flops_bf16 = 432 * kTera, .flops_fp8 = 865 * kTera, .best_bf16 = 0.969, .best_fp8 = 0.955, .link = 262.5 * kGb, .link_to_one = 37.5 * kGb,
                             .link_efficiency = kEthernet, .pcie = 31 * kGb, .watts = 600,
                             .origin = "stas00/ml-engineering; 21 of 24 ports of 100 Gb/s inside the node"};
  DeviceKind gaudi3 = gaudi2;
  gaudi3.name = "Gaudi3-128GB";
  gaudi3.memory = gib(128);
  gaudi3.memory_bandwidth = 3700 * kGb;
  gaudi3.flops_fp32 = 229 * kTera;
  gaudi3.flops_bf16 = gaudi3.flops_fp8 = 1677 * kTera;
  gaudi3.best_bf16 = 0.741;
  gaudi3.best_fp8 = 0.769;
  gaudi3.link = 525 * kGb;
  gaudi3.link_to_one = 75 * kGb;
  gaudi3.pcie = 63 * kGb;
  gaudi3.watts = 900;
  gaudi3.origin = "stas00/ml-engineering, at the 1600 MHz that were shipped; 21 of 24 ports of 200 Gb/s inside the node";
  return {{gaudi2, switched(300, gib(1024)), {"gaudi2", "gaudi-2"}}, {gaudi3, switched(600), {"gaudi3", "gaudi-3"}}};
}

}  // namespace

const std::vector<DeviceRow>& device_rows() {
  static const std::vector<DeviceRow> rows = [] {
    std::vector<DeviceRow> all;
    for (const auto& of : {volta(), ampere(), hopper(), blackwell(), cdna(), gaudi(), workstation()}) all.insert(all.end(), of.begin(), of.end());
    return all;
  }();
  return rows;
}

}  // namespace lockstep::plan
