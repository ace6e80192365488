#include "lockstep/plan/stack_toml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/this_machine.h"

namespace lockstep::plan {
namespace {

using testing::HasSubstr;

Stack usual() { return stack_of(device_kind("h100"), Kernels::kCurrent); }

void expect_same(const Stack& a, const Stack& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.kernels, b.kernels);
  EXPECT_EQ(a.origins, b.origins);
  for (const auto& [name, field] : stack_constants()) EXPECT_EQ(a.*field, b.*field) << name;
}

std::string error_of(std::string_view text) {
  try {
    parse_stack_toml(text, "m.toml", usual());
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing refused";
}

TEST(StackToml, ThereAndBack) {
  Stack stack = usual();
  stack.name = "a \"name\"\\";
  stack.kernels = Kernels::kFlash;
  stack.origins["launch"] = "fitted to runs/x, steps 10, 11";
  double value = 0.1;
  for (const auto& [name, field] : stack_constants()) stack.*field = value *= 1.37;  // every field another number
  expect_same(parse_stack_toml(stack_toml(stack), "m.toml", Stack{}), stack);
}

TEST(StackToml, ChangesWhatItNames) {
  const Stack stack = parse_stack_toml("[stack]\nlaunch = 1e-5\nproduct_cap = 1\n[stack.origins]\nlaunch = \"nsys\"\n", "m.toml", usual());
  EXPECT_EQ(stack.launch, 1e-5);
  EXPECT_EQ(stack.product_cap, 1);
  EXPECT_EQ(stack.memory_share, usual().memory_share);
  EXPECT_EQ(stack.origins.at("launch"), "nsys");
  EXPECT_EQ(stack.origins.at("product_cap"), "m.toml");
}

TEST(StackToml, NamesTheLineOfWhatItRefuses) {
  EXPECT_THAT(error_of("[stack]\nlaunch = 1e-5\nproduct_kap = 1\n"), AllOf(HasSubstr("LS1153"), HasSubstr("m.toml:3:1"), HasSubstr("did you mean 'product_cap'")));
  EXPECT_THAT(error_of("[stack]\nlaunch = -1\n"), HasSubstr("m.toml:2:10"));
  EXPECT_THAT(error_of("[stack]\nlaunch = \"fast\"\n"), HasSubstr("not a number"));
  EXPECT_THAT(error_of("[stack]\nlaunch = nan\n"), HasSubstr("not a number"));
  EXPECT_THAT(error_of("[stack]\nkernels = \"old\"\n"), HasSubstr("unfused, flash, current"));
  EXPECT_THAT(error_of("[stack.origins]\nlunch = \"x\"\n"), HasSubstr("did you mean 'launch'"));
  EXPECT_THAT(error_of("nodes = 4\n"), HasSubstr("no table [stack]"));
  EXPECT_THAT(error_of("[stack\n"), HasSubstr("not TOML"));
}

TEST(StackToml, LinesOfOthersKeepTheirNumbers) {
  const std::string text = "nodes = 1\n[stack]\nlaunch = 1\n[device]\nname = \"x\"\n [stack.origins]\nlaunch = \"y\"\n[slow.nodes]\n0 = 0.5\n";
  EXPECT_EQ(without_machine_tables(text), "nodes = 1\n\n\n[device]\nname = \"x\"\n\n\n[slow.nodes]\n0 = 0.5\n");
  EXPECT_TRUE(has_stack(text));
  EXPECT_FALSE(has_stack(without_machine_tables(text)));
}

const HostFacts kFacts{.processor = "A CPU", .cores = 8, .memory = 64e9};
const HostSpeed kSpeed{.flops = 100e9, .memory = 40e9, .latency = 2e-7};

TEST(ThisMachine, SharesOutCoresAndMemory) {
  const Cluster two = this_machine(kFacts, kSpeed, {.ranks = 2});
  EXPECT_EQ(two.devices(), 2);
  EXPECT_EQ(two.device.flops_fp32, 400e9) << "4 cores";
  EXPECT_EQ(two.device.memory_bandwidth, 20e9);
  EXPECT_EQ(two.device.memory, 32e9);
  EXPECT_EQ(two.device.generation, Generation::kCpu);
  EXPECT_EQ(this_machine(kFacts, kSpeed, {.ranks = 2, .threads = 1}).device.flops_fp32, 100e9) << "cores that nobody uses";
  EXPECT_EQ(this_machine(kFacts, kSpeed, {.ranks = 16, .threads = 1}).device.flops_fp32, 50e9) << "two ranks on a core";
  EXPECT_EQ(this_machine(kFacts, kSpeed, {}).devices(), 8);
}

HostMachine host_of(const MachineRanks& ranks, const HostSpeed& speed = kSpeed) {
  HostMachine host{.machine = {.cluster = this_machine(kFacts, speed, ranks), .stack = {.product_cap = 0.9}}, .host = host_share(kFacts, speed, ranks)};
  host.host->ranks.ranks = host.machine.cluster.devices_per_node;
  return host;
}

TEST(ThisMachine, WithOtherRanksIsThatMachine) {
  for (const MachineRanks& ranks : {MachineRanks{.ranks = 16, .threads = 1}, {.ranks = 1, .threads = 3}, {.ranks = 3}, {}}) {
    const HostMachine now = with_ranks(host_of({.ranks = 2}), ranks);
    EXPECT_EQ(cluster_toml(now.machine.cluster), cluster_toml(this_machine(kFacts, kSpeed, ranks)));
    EXPECT_EQ(now.machine.cluster.device.alone, this_machine(kFacts, kSpeed, ranks).device.alone);
    EXPECT_EQ(now.machine.stack.product_cap, 0.9);
  }
  const HostMachine none{.machine = host_of({.ranks = 2}).machine, .host = std::nullopt};
  EXPECT_EQ(with_ranks(none, {.ranks = 4}).machine.cluster.devices(), 2) << "no host";
}

TEST(ThisMachine, MemoryIsWhatTheCoresOfARankCanTake) {
  const HostSpeed half{.flops = 100e9, .memory = 40e9, .memory_of_core = 10e9, .latency = 2e-7};  // four cores take all
  EXPECT_EQ(host_share(kFacts, half, {}).saturating, 4);
  EXPECT_EQ(this_machine(kFacts, half, {.ranks = 1, .threads = 1}).device.memory_bandwidth, 10e9);
  EXPECT_EQ(this_machine(kFacts, half, {.ranks = 1, .threads = 6}).device.memory_bandwidth, 40e9);
  EXPECT_EQ(this_machine(kFacts, half, {.ranks = 8, .threads = 1}).device.memory_bandwidth, 5e9);
  EXPECT_EQ(this_machine(kFacts, half, {.ranks = 2, .threads = 4}).device.link, 10e9) << "one core copies";
}

TEST(ThisMachine, RanksThatShareCoresAreFasterAlone) {
  EXPECT_EQ(this_machine(kFacts, kSpeed, {.ranks = 8, .threads = 1}).device.alone, 1);
  EXPECT_EQ(this_machine(kFacts, kSpeed, {.ranks = 16, .threads = 1}).device.alone, 2);
  EXPECT_EQ(this_machine(kFacts, kSpeed, {.ranks = 4, .threads = 8}).device.alone, 4) << "all cores, and a quarter of them";
  EXPECT_EQ(this_machine(kFacts, kSpeed, {.ranks = 4}).device.alone, 1);
}

TEST(ThisMachine, ThereAndBack) {
  HostMachine written = host_of({.ranks = 16, .threads = 1});
  written.machine.stack = stack_of(written.machine.cluster.device, Kernels::kCurrent);
  written.machine.stack.product_cap = 0.77;
  written.machine.stack.origins["product_cap"] = "fitted to runs/x";
  const HostMachine read = parse_machine_toml(machine_toml(written), "here.toml");
  expect_same(read.machine.stack, written.machine.stack);
  EXPECT_EQ(cluster_toml(read.machine.cluster), cluster_toml(written.machine.cluster));
  EXPECT_EQ(read.machine.cluster.device.link_latency, 2e-7);
  EXPECT_EQ(read.machine.cluster.device.alone, 2);
  EXPECT_EQ(read.host, written.host);
  // A cluster file alone has the constants that are usual for its device, and is no host.
  const Cluster& cluster = written.machine.cluster;
  const HostMachine alone = parse_machine_toml(cluster_toml(cluster), "here.toml");
  expect_same(alone.machine.stack, stack_of(cluster.device, usual_kernels(cluster.device)));
  EXPECT_FALSE(alone.host);
}

TEST(ThisMachine, RefusesAHostThatIsNone) {
  const std::string text = machine_toml(host_of({.ranks = 2}));
  for (const auto& [from, to] : {std::pair{"ranks = 2", "ranks = 3"}, {"cores = 8", "cores = 0"}, {"cores = 8", "cores = 8.5"},
                                 {"threads = 0", "threads = -1"}, {"threads = 0", "speed = 1"}, {"cores = 8", "cores = \"8\""}}) {
    std::string wrong = text;
    wrong.replace(wrong.rfind(from), std::string(from).size(), to);
    EXPECT_THROW(parse_machine_toml(wrong, "here.toml"), ConfigError) << to;
  }
}

TEST(HostSpeed, IsMeasured) {
  const HostSpeed speed = measure_host(2, 0.002);
  EXPECT_GT(speed.flops, 0);
  EXPECT_GT(speed.memory, 0);
  EXPECT_GT(speed.memory_of_core, 0);
  EXPECT_GT(speed.latency, 0);
}

TEST(HostFacts, AreReadFromProc) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / "host_facts";
  std::filesystem::create_directories(root / "proc");
  write_file(root / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nmodel name\t: Other\n");
  write_file(root / "proc/meminfo", "MemTotal: 2000 kB\nMemAvailable: 1000 kB\n");
  const HostFacts facts = host_facts(root);
  EXPECT_EQ(facts.processor, "Some CPU @ 2.0GHz");
  EXPECT_EQ(facts.memory, 1024000);
  EXPECT_EQ(host_facts(root / "nowhere").processor, "CPU");
}

}  // namespace
}  // namespace lockstep::plan
