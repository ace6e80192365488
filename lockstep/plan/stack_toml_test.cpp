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
  EXPECT_EQ(without_stack(text), "nodes = 1\n\n\n[device]\nname = \"x\"\n\n\n[slow.nodes]\n0 = 0.5\n");
  EXPECT_TRUE(has_stack(text));
  EXPECT_FALSE(has_stack(without_stack(text)));
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

TEST(ThisMachine, WithOtherRanksIsThatMachine) {
  const Machine two{.cluster = this_machine(kFacts, kSpeed, {.ranks = 2}), .stack = {.product_cap = 0.9}};
  const Machine sixteen = with_ranks(two, {.ranks = 2}, {.ranks = 16, .threads = 1}, 8);
  const Cluster made = this_machine(kFacts, kSpeed, {.ranks = 16, .threads = 1});
  EXPECT_DOUBLE_EQ(sixteen.cluster.device.flops_fp32, made.device.flops_fp32);
  EXPECT_DOUBLE_EQ(sixteen.cluster.device.memory_bandwidth, made.device.memory_bandwidth);
  EXPECT_DOUBLE_EQ(sixteen.cluster.device.link, made.device.link);
  EXPECT_DOUBLE_EQ(sixteen.cluster.device.memory, made.device.memory);
  EXPECT_EQ(sixteen.cluster.devices(), 16);
  EXPECT_EQ(sixteen.cluster.domain, 16);
  EXPECT_EQ(sixteen.stack.product_cap, 0.9);
}

TEST(ThisMachine, ThereAndBack) {
  Machine machine{.cluster = this_machine(kFacts, kSpeed, {.ranks = 4})};
  machine.stack = stack_of(machine.cluster.device, Kernels::kCurrent);
  machine.stack.product_cap = 0.77;
  machine.stack.origins["product_cap"] = "fitted to runs/x";
  const Machine read = parse_machine_toml(machine_toml(machine), "here.toml");
  expect_same(read.stack, machine.stack);
  EXPECT_EQ(cluster_toml(read.cluster), cluster_toml(machine.cluster));
  EXPECT_EQ(read.cluster.device.link_latency, 2e-7);
  // A cluster file alone has the constants that are usual for its device.
  expect_same(parse_machine_toml(cluster_toml(machine.cluster), "here.toml").stack, stack_of(machine.cluster.device, usual_kernels(machine.cluster.device)));
}

TEST(HostSpeed, IsMeasured) {
  const HostSpeed speed = measure_host(2, 0.002);
  EXPECT_GT(speed.flops, 0);
  EXPECT_GT(speed.memory, 0);
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
