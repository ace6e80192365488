// Layouts, clusters and times for the tests of this room.
#pragma once

#include <string>

#include "lockstep/plan/time/step_walk.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/passes/passes.h"

namespace lockstep::plan::test_times {

struct PipelineCase {
  program::ScheduleKind kind = program::ScheduleKind::kOneFOneB;
  int ranks = 4;
  int microbatches = 4;
  int virtual_stages = 1;
};

// A block to every stage, the first with the embedding and the last with the head.
inline program::Layout pipeline_layout(const PipelineCase& of) {
  config::ModelSection section{.preset = "gpt2-test"};
  section.layers = of.ranks * of.virtual_stages;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kPp] = of.ranks;
  program::Pipeline pipeline{.kind = of.kind, .ranks = of.ranks, .virtual_stages = of.virtual_stages};
  pipeline.first_layer = program::stages_of_blocks(std::vector<int>(static_cast<size_t>(pipeline.stages()), 1));
  program::Layout layout{.model = arch::resolve_model(section), .mesh = mesh::Mesh(degrees)};
  layout.pipeline = pipeline;
  layout.global_batch = of.microbatches;
  layout.micro_batch = 1;
  layout.seq_len = 16;
  return layout;
}

// F, I and W of a stage take so long, all else nothing.
struct StageTimes {
  double forward = 1, input = 1, weight = 1;
  double all() const { return forward + input + weight; }
};
inline TimeOfAction stage_times(const program::Layout& layout, const StageTimes& of) {
  return [&layout, of](int, const program::Action& action) {
    ActionTime time;
    if (!program::computes(action.kind)) return time;
    const auto [begin, end] = layout.stage_layers(layout.pipeline.stage_of(action.layer));
    const program::Work work = program::work_of(action.kind);
    double whole = work == program::Work::kForward ? of.forward : 0;
    if (program::goes_back(action.kind)) whole += of.input;
    if (program::adds_to_weights(action.kind)) whole += of.weight;
    time.seconds = time.work.products = whole / (end - begin);
    return time;
  };
}

// A run of small sizes; `change` it.
struct SmallRun {
  const char* preset = "llama-test";
  int ranks = 1;
  int64_t layers = 0;  // 0: the preset's
};
template <typename Change>
program::Layout small_layout(const SmallRun& of, const Change& change) {
  config::RunConfig config;
  config.model.preset = of.preset;
  if (of.layers > 0) config.model.layers = of.layers;
  config.train.micro_batch = 2;
  config.train.global_batch = 16;
  config.train.seq_len = 32;
  config.train.precision = config::Precision::kBf16;
  config.parallel.bucket_mib = 0.0625;
  change(config);
  return program::make_layout(config, arch::resolve_model(config.model), of.ranks);
}
inline program::Layout small_layout(const SmallRun& of = {}) {
  return small_layout(of, [](config::RunConfig&) {});
}

// Nodes of four devices of 100 TFLOP/s, 1 TB/s of memory, links of 100 GB/s and NICs of 10 GB/s.
inline Cluster small_cluster(int nodes = 1) {
  Cluster cluster;
  cluster.device.name = "test device";
  cluster.device.generation = Generation::kAmpere;
  cluster.device.memory = 80e9;
  cluster.device.memory_bandwidth = 1e12;
  cluster.device.flops_fp32 = 50e12;
  cluster.device.flops_bf16 = 100e12;
  cluster.device.flops_fp8 = 200e12;
  cluster.device.processors = 100;
  cluster.device.link = cluster.device.link_to_one = 100e9;
  cluster.device.pcie = 20e9;
  cluster.nodes = nodes;
  cluster.devices_per_node = cluster.domain = cluster.nics_per_node = 4;
  cluster.network.nic = 10e9;
  return cluster;
}

// Products at the peak, attention too, nothing else takes time.
inline DeviceKind ideal_device() {
  DeviceKind device;
  device.name = "ideal device";
  device.generation = Generation::kHopper;
  device.memory_bandwidth = 1e30;
  device.flops_fp32 = device.flops_bf16 = device.flops_fp8 = 1e12;
  return device;
}
inline Stack ideal_stack() {
  Stack stack{.name = "ideal"};
  stack.product_cap = stack.fp8_cap = stack.memory_share = stack.attention_forward = stack.attention_backward = stack.narrow_heads = stack.network_share = 1;
  stack.product_depth = stack.fp8_depth = stack.attention_ramp = stack.launch = stack.host_share = stack.straggle = 0;
  return stack;
}

}  // namespace lockstep::plan::test_times
