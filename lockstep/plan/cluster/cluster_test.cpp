#include "lockstep/plan/cluster/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/cluster_fields.h"

namespace lockstep::plan {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr double kGb = 1e9;

Message message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const ConfigError& error) {
    return error.message();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}
Message refused(const std::string& text) {
  return message_of([&] { parse_cluster(text); });
}
Message refused_toml(const std::string& text) {
  return message_of([&] { parse_cluster_toml(text, "own.toml"); });
}

TEST(DevicesTest, EveryDeviceHasTheNumbersThatTimesAreMadeOf) {
  for (const std::string& name : device_names()) {
    const DeviceKind& device = device_kind(name);
    EXPECT_EQ(device.name, name);
    EXPECT_GT(device.memory, 16 * kGb) << name;
    EXPECT_GT(device.memory_bandwidth, 500 * kGb) << name;
    EXPECT_GT(device.flops_bf16, device.flops_fp32) << name;
    EXPECT_TRUE(device.flops_fp8 == 0 || device.flops_fp8 >= device.flops_bf16) << name;  // Gaudi 3 has as many
    EXPECT_TRUE(device.processors > 0 || name.starts_with("Gaudi")) << name;
    EXPECT_GT(device.pcie, 0) << name;
    EXPECT_GE(device.link, device.link_to_one) << name;
    EXPECT_FALSE(device.origin.empty()) << name;
  }
}

TEST(DevicesTest, ShortNamesAndCapitals) {
  EXPECT_EQ(device_kind("h100").name, "H100-SXM5-80GB");
  EXPECT_EQ(device_kind("H100-sxm5-80gb").name, "H100-SXM5-80GB");
  EXPECT_EQ(device_kind("a100").name, "A100-SXM4-80GB");
  EXPECT_EQ(device_kind("a100-40").name, "A100-SXM4-40GB");
  EXPECT_EQ(device_kind("mi300x").generation, Generation::kCdna);
  EXPECT_EQ(device_kind("gb200").flops_bf16, 2500e12);
  EXPECT_EQ(device_kind("h200").memory, 141.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(device_kind("NVIDIA H100 SXM5 80GB").name, "H100-SXM5-80GB");
  EXPECT_EQ(device_kind("AMD Instinct MI300X").name, "MI300X");
}

// Names that tables of published runs and of data sheets use.
TEST(DevicesTest, DevicesOfPublishedTables) {
  for (const char* name : {"V100-SXM2-32GB", "V100-SXM3-32GB", "A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIe-80GB", "A800-SXM4-80GB", "H100-SXM5-80GB",
                           "H100-SXM5-96GB-HBM2e-500W", "H100-PCIe-80GB", "H100-NVL-94GB", "H200-SXM5-141GB", "H800-SXM5-80GB", "H20-SXM-96GB",
                           "GH200-96GB", "B200-SXM-180GB", "B300-SXM-288GB", "GB200-NVL72", "GB300-NVL72", "L40S-48GB", "RTX-4090-24GB", "RTX-5090-32GB",
                           "RTX-3090-24GB", "RTX-A6000-48GB", "MI250X", "MI300X", "MI325X", "MI355X", "Gaudi2-96GB", "Gaudi3-128GB"})
    EXPECT_EQ(device_kind(name).name, name);
  EXPECT_EQ(parse_cluster("16xgh200").nodes, 16) << "one device a node";
  EXPECT_EQ(parse_cluster("8xa6000").domain, 2) << "bridges join two";
  EXPECT_NEAR(parse_cluster("8xgaudi2").device.link, 21 * 12.5 * kGb, 1);
}

TEST(DevicesTest, AnUnknownDeviceNamesTheNearest) {
  const Message message = message_of([] { device_kind("h10"); });
  EXPECT_EQ(message.code, "LS1140");
  EXPECT_THAT(message.what, HasSubstr("'h10'"));
  EXPECT_THAT(message.way_out, HasSubstr("did you mean 'h100'?"));
}

TEST(ClusterWordsTest, DevicesAlone) {
  const Cluster eight = parse_cluster("8xh100");
  EXPECT_EQ(eight.device.name, "H100-SXM5-80GB");
  EXPECT_EQ(eight.nodes, 1);
  EXPECT_EQ(eight.devices_per_node, 8);
  EXPECT_EQ(eight.domain, 8);
  EXPECT_EQ(describe(eight), "8 x H100-SXM5-80GB");
  EXPECT_EQ(parse_cluster("4 x h100").domain, 4);
  EXPECT_EQ(parse_cluster("2xl40s").domain, 1) << "cards without links";

  const Cluster many = parse_cluster("512xH100");
  EXPECT_EQ(many.nodes, 64);
  EXPECT_EQ(many.devices(), 512);
  EXPECT_EQ(many.network.nic, 50 * kGb);
  EXPECT_EQ(many.network.efficiency, 0.97) << "48.5 GB/s of 400 Gb/s";
}

TEST(ClusterWordsTest, NodesAndTheirNetwork) {
  const Cluster cluster = parse_cluster("64 nodes of 8xh200, leaf-spine 400G, 2:1");
  EXPECT_EQ(cluster.nodes, 64);
  EXPECT_EQ(cluster.network.nodes_per_leaf, 32);
  EXPECT_EQ(cluster.leaves(), 2);
  EXPECT_EQ(cluster.network.oversubscription, 2);
  EXPECT_EQ(cluster.nic_of_device(), 50 * kGb);
  EXPECT_EQ(describe(cluster), "64 nodes of 8 x H200-SXM5-141GB, 8 NICs of 50.0 GB/s, 2 leaves of 32 nodes, 2:1");
}

TEST(ClusterWordsTest, AllWordsInAnyOrder) {
  const Cluster cluster = parse_cluster("16 nodes of 8xa100, $2.5/h, 4 NICs, rails, 100G RoCE, 8 nodes a leaf, 3:2");
  EXPECT_EQ(cluster.price, 2.5);
  EXPECT_EQ(cluster.nics_per_node, 4);
  EXPECT_TRUE(cluster.network.rails);
  EXPECT_EQ(cluster.network.nic, 12.5 * kGb);
  EXPECT_EQ(cluster.network.efficiency, 0.94);
  EXPECT_EQ(cluster.network.latency_leaf, 3.6e-6);
  EXPECT_EQ(cluster.network.latency_spine, 5.6e-6);
  EXPECT_EQ(cluster.network.nodes_per_leaf, 8);
  EXPECT_EQ(cluster.network.oversubscription, 1.5);
  EXPECT_EQ(parse_cluster("16 nodes of 4xgb200, 64 devices a domain").domain, 64);
}

// As people write them.
TEST(ClusterWordsTest, OneClusterInManyWords) {
  for (const char* text : {"8 x H100", "8\u00d7 H100", "8 h100", "8 H100s", "8 H100 GPUs", "h100 x 8", "8xH100 SXM5", "8 x NVIDIA H100 SXM5 80GB",
                           "1 node of 8xh100"})
    EXPECT_EQ(describe(parse_cluster(text)), "8 x H100-SXM5-80GB") << text;
  const std::string whole = describe(parse_cluster("64 nodes of 8xh200, leaf-spine 400G, 2:1"));
  for (const char* text : {"64 nodes of 8xh200 leaf-spine 400G 2:1", "64 nodes 8xh200, leaf spine 400 Gb/s, 2:1 oversubscription",
                           "64 Nodes Of 8 H200, Leaf-Spine, 50GB/s, oversubscribed 2:1", "64 nodes with 8 x H200, fat tree, NDR, 2:1",
                           "64x8xh200, 8x400G, 2:1 leaf-spine", "64 x 8 x H200, leaf-spine, 8 NICs of 400Gbps, 32 nodes per leaf, 2:1"})
    EXPECT_EQ(describe(parse_cluster(text)), whole) << text;
  EXPECT_TRUE(parse_cluster("64 nodes of 8xh200, rail-optimised").network.rails);
  EXPECT_EQ(parse_cluster("64 nodes of 8xh200, non-blocking").network.oversubscription, 1);
  for (const char* text : {"8xh100, $2.5/h", "8xh100, $2.5/hour", "8xh100, 2.5$/gpu-hour", "8xh100, $2.5 per hour"})
    EXPECT_EQ(parse_cluster(text).price, 2.5) << text;
}

TEST(ClusterWordsTest, Racks) {
  const Cluster racks = parse_cluster("2 racks of gb200, 4:1");
  EXPECT_EQ(racks.devices(), 144);
  EXPECT_EQ(racks.domain, 72);
  EXPECT_EQ(racks.leaves(), 2) << "no rack stands under two leaves";
  EXPECT_EQ(parse_cluster("2 racks of gb200-nvl72").nodes, 36);
  EXPECT_EQ(parse_cluster("GB300 NVL72").network.nic, 100 * kGb);
  EXPECT_THAT(refused("2 racks of h100").what, HasSubstr("come in no racks"));
}

TEST(ClusterWordsTest, PresetsAndPartsOfThem) {
  for (const std::string& name : cluster_presets()) {
    const Cluster cluster = parse_cluster(name);
    EXPECT_EQ(cluster.name, name);
    EXPECT_THAT(cluster.origin, HasSubstr("preset " + name));
  }
  EXPECT_THAT(cluster_presets(), Contains("deepseek-h800"));
  const Cluster rack = parse_cluster("gb200-nvl72");
  EXPECT_EQ(rack.devices(), 72);
  EXPECT_EQ(rack.domain, 72);
  const Cluster part = parse_cluster("16 nodes of dgx-h100-superpod");
  EXPECT_EQ(part.nodes, 16);
  EXPECT_TRUE(part.network.rails);
  EXPECT_EQ(parse_cluster("a100-4xhdr").nic_of_device(), 12.5 * kGb);
  EXPECT_EQ(parse_cluster("meta-24k-roce").network.oversubscription, 7);
}

TEST(ClusterWordsTest, WhatIsNotKnownIsNamed) {
  EXPECT_EQ(refused("64 nodes of 8xh200, leafspine").code, "LS1141");
  EXPECT_THAT(refused("64 nodes of 8xh200, leafspine").what, HasSubstr("'leafspine'"));
  EXPECT_THAT(refused("64 nodes of 8xh200, leafspine").way_out, HasSubstr("did you mean 'leaf-spine'?"));
  EXPECT_THAT(refused("selene-a10").way_out, HasSubstr("did you mean 'selene-a100'?"));
  EXPECT_EQ(refused("8xh10").code, "LS1140");
  EXPECT_THAT(refused("h100").what, HasSubstr("'h100' is no cluster"));
  EXPECT_THAT(refused("").way_out, HasSubstr("8xh100"));
  EXPECT_THAT(refused("12xh100").what, HasSubstr("12 x H100-SXM5-80GB are no whole nodes of 8"));
  EXPECT_THAT(refused("0xh100").what, HasSubstr("'0xh100'"));
  EXPECT_THAT(refused("0 nodes of 8xh100").what, HasSubstr("'0'"));
  EXPECT_THAT(refused("4 nodes of 8xh100, 1:2").what, HasSubstr("'1:2'"));
  EXPECT_THAT(refused("4 nodes of 8xh100, 8 cards").what, HasSubstr("'8'"));
  EXPECT_THAT(refused("4 nodes of 8xh100, 400G, 200G").what, HasSubstr("a second time"));
  EXPECT_THAT(refused("4 nodes of 8xh100, infg").what, HasSubstr("'infg'"));
  EXPECT_THAT(refused("9999999 nodes of 8xh100").what, HasSubstr("more than 16777216"));
  EXPECT_THAT(refused("4 nodes of 8xh100, 3 devices a domain").what, HasSubstr("domain(3)"));
}

TEST(ClusterWordsTest, OneNodeHasNoNetwork) {
  EXPECT_THAT(refused("8xh100, 2:1").what, HasSubstr("'2:1' is about a network"));
  EXPECT_EQ(parse_cluster("8xh100, $3/h").price, 3);
}

// Every field of the two, by what the table of fields says of them.
void expect_same(Cluster a, Cluster b) {
  for (const ClusterField& field : cluster_fields()) {
    std::visit([&](auto* left) { EXPECT_EQ(*left, *std::get<decltype(left)>(field.slot(b))) << field.key(); }, field.slot(a));
  }
  EXPECT_EQ(a.slow, b.slow);
}

TEST(ClusterTomlTest, WrittenAndReadItIsTheSame) {
  for (std::string text : {"8xh100", "64 nodes of 8xh200, leaf-spine 400G, 2:1, $2.49/h", "gb200-nvl72", "selene-a100", "2xl40s", "mi"}) {
    Cluster cluster = parse_cluster(text == "mi" ? "8xmi300x" : text);
    cluster.slow.nodes[0] = 0.8;
    cluster.slow.nics[cluster.nodes - 1] = 1.0 / 3;
    cluster.failures = 1.7e-5;
    cluster.network.latency_leaf = 2.8e-6;
    cluster.device.link_latency = 1e-6 / 3;
    cluster.name = "a \"name\" with a quote";
    const Cluster read = parse_cluster_toml(cluster_toml(cluster), "again.toml");
    expect_same(cluster, read);
    EXPECT_EQ(read.origin, "again.toml");
    EXPECT_EQ(cluster_toml(read), cluster_toml(cluster));
  }
}

TEST(ClusterTomlTest, AFileSaysOnlyWhatIsNotUsual) {
  const Cluster cluster = parse_cluster_toml(R"(
nodes = 16
[device]
kind = "h100"
memory = "96GiB"
link = "500GB/s"
[network]
nic = "200Gb/s"
nodes_per_leaf = 8
[slow.nodes]
3 = 0.8
)", "own.toml");
  EXPECT_EQ(cluster.devices(), 128);
  EXPECT_EQ(cluster.device.memory, 96.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(cluster.device.flops_bf16, 989e12);
  EXPECT_EQ(cluster.device.link_to_one, 500 * kGb) << "a switch gives all of it to one";
  EXPECT_EQ(cluster.network.nic, 25 * kGb);
  EXPECT_EQ(cluster.network.efficiency, 0.94) << "of 200 Gb/s";
  EXPECT_EQ(cluster.leaves(), 2);
  EXPECT_EQ(cluster.slow.nodes.at(3), 0.8);
}

TEST(ClusterTomlTest, AFileMayBeginWithWords) {
  const Cluster cluster = parse_cluster_toml("like = \"32 nodes of 8xh100, rails\"\ndevices_per_node = 4\nprice = 2\n", "own.toml");
  EXPECT_EQ(cluster.nodes, 32);
  EXPECT_TRUE(cluster.network.rails);
  EXPECT_EQ(cluster.domain, 4) << "follows the devices of a node";
  EXPECT_EQ(cluster.nics_per_node, 4);
  EXPECT_EQ(cluster.price, 2);
}

TEST(ClusterTomlTest, ADeviceOfOnesOwn) {
  const std::string text = R"(nodes = 2
devices_per_node = 4
[device]
memory = "64GiB"
memory_bandwidth = "2TB/s"
flops_bf16 = "400TFLOP/s"
link = 2e11
)";
  const Cluster cluster = parse_cluster_toml(text + "[network]\nnic = \"100Gb/s\"\n", "own.toml");
  EXPECT_EQ(cluster.device.generation, Generation::kOther);
  EXPECT_EQ(cluster.domain, 4);
  EXPECT_EQ(cluster.nics_per_node, 4);
  EXPECT_EQ(cluster.device.link_to_one, 200 * kGb);
  EXPECT_EQ(cluster.network.nic, 12.5 * kGb);
  EXPECT_THAT(refused_toml(text).what, HasSubstr("2 nodes without a bandwidth of NICs"));
  EXPECT_THAT(refused_toml("nodes = 2\ndevices_per_node = 4\n").what, HasSubstr("device.memory is not set"));
}

TEST(ClusterTomlTest, ProblemsHaveTheirLines) {
  const Message message = refused_toml("nodes = 4\n[device]\nkind = \"h100\"\nmemroy = 5\n[network]\nnic = \"fast\"\noversubscription = 0.5\n");
  EXPECT_EQ(message.code, "LS1142");
  EXPECT_EQ(message.where, "own.toml:4:1");
  EXPECT_THAT(message.what, HasSubstr("unknown key 'device.memroy'"));
  EXPECT_THAT(message.what, HasSubstr("did you mean 'memory'?"));
  EXPECT_THAT(message.what, HasSubstr("own.toml:6:7")) << "all at once";
  EXPECT_THAT(message.what, HasSubstr("network.nic is not bytes per second"));
  EXPECT_THAT(message.what, HasSubstr("network.oversubscription is not between 1 and 1000"));
}

TEST(ClusterTomlTest, WhatIsNoClusterIsRefused) {
  EXPECT_THAT(refused_toml("nodes = ").what, HasSubstr("not TOML"));
  EXPECT_THAT(refused_toml("like = \"8xh10\"").what, HasSubstr("no device is called 'h10'"));
  EXPECT_THAT(refused_toml("like = 5").what, HasSubstr("'' is no cluster"));
  EXPECT_THAT(refused_toml("like = \"8xh100\"\nnodes = 0").what, HasSubstr("nodes is not a whole number of 1 or more"));
  EXPECT_THAT(refused_toml("like = \"8xh100\"\nnodes = 2.5").where, HasSubstr("own.toml:2:9"));
  EXPECT_THAT(refused_toml("like = \"8xh100\"\nprice = nan").what, HasSubstr("price is not a number"));
  EXPECT_THAT(refused_toml("like = \"8xh100\"\nprice = true").what, HasSubstr("price is not a number"));
  EXPECT_THAT(refused_toml("like = \"8xh100\"\nslow = 3").what, HasSubstr("slow is a table"));
  EXPECT_THAT(refused_toml("like = \"8xh100\"\n[slow.nodes]\n0 = 1.5").what, HasSubstr("slow.nodes.0"));
  EXPECT_THAT(refused_toml("like = \"8xh100\"\n[slow.nodes]\n7 = 0.5").what, HasSubstr("node 7 of 1 is slow"));
  EXPECT_THAT(refused_toml("like = \"8xh100\"\n[slow.disks]\n0 = 0.5").what, HasSubstr("unknown key 'slow.disks'"));
  EXPECT_THAT(refused_toml("like = \"8xh100\"\n[device]\ngeneration = \"hoper\"").what, HasSubstr("one of cpu, volta"));
  EXPECT_THAT(refused_toml(std::string(200, '[')).what, Not(HasSubstr("did you mean")));
}

TEST(ClusterTest, AFileThatIsNotThereIsNamed) { EXPECT_THROW(parse_cluster("no/such.toml"), Error); }

TEST(ClusterTest, SlownessAndDomainsAreDescribed) {
  Cluster cluster = parse_cluster("36 nodes of 4xgb200");
  cluster.slow.nodes[3] = 0.8;
  cluster.slow.nics[1] = 0.5;
  EXPECT_EQ(describe(cluster), "36 nodes of 4 x GB200-NVL72, domains of 72, 4 NICs of 50.0 GB/s, one leaf, node 3 at 0.8, NICs of node 1 at 0.5");
}

TEST(ClusterTest, LeavesAreCounted) {
  Cluster cluster = parse_cluster("65 nodes of 8xh100, 32 nodes a leaf");
  EXPECT_EQ(cluster.leaves(), 3);
  EXPECT_EQ(cluster.leaf_of(64), 2);
}

}  // namespace
}  // namespace lockstep::plan
