// A plan made by hand, for the tests of pages: no number in it comes from an estimate.
#pragma once

#include "lockstep/base/text.h"
#include "lockstep/plan/plan_html.h"

namespace lockstep::plan {

struct HandMade {
  int nodes = 4;
  int nodes_per_leaf = 2;
  int pp = 2;
  int microbatches = 8;
};

inline Cluster hand_made_cluster(const HandMade& of) {
  return {.name = "hand made",
          .device = {.name = "H100-SXM5-80GB",
                     .generation = Generation::kHopper,
                     .memory = 80e9,
                     .memory_bandwidth = 3.35e12,
                     .flops_bf16 = 989e12,
                     .flops_fp8 = 1979e12,
                     .processors = 132,
                     .link = 450e9,
                     .link_to_one = 450e9,
                     .origin = "data sheet"},
          .nodes = of.nodes,
          .devices_per_node = 8,
          .domain = 8,
          .nics_per_node = 8,
          .network = {.nic = 50e9, .nodes_per_leaf = of.nodes_per_leaf, .oversubscription = 2},
          .price = 2.5,
          .origin = "a test"};
}

inline mesh::Mesh hand_made_mesh(const HandMade& of) {
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kPp] = of.pp;
  degrees[mesh::Axis::kTp] = 8;
  degrees[mesh::Axis::kDpShard] = of.nodes / of.pp;
  return mesh::Mesh(degrees);
}

// 1F1B with F = 1 and B = 2, one after the other: dense, and no real schedule.
inline std::vector<TimedBox> hand_made_boxes(const HandMade& of, double step) {
  std::vector<TimedBox> boxes;
  const double slot = step / (3.0 * (of.microbatches + of.pp));
  for (int stage = 0; stage < of.pp; ++stage) {
    double now = stage * slot;
    for (int i = 0; i < of.microbatches; ++i) {
      boxes.push_back({stage, 'c', cat("F", i), now, now + slot});
      boxes.push_back({stage, 'n', cat("SEND_F ", i), now + slot, now + 1.3 * slot});
      boxes.push_back({stage, 't', "all_gather", now, now + 0.1 * slot});
      boxes.push_back({stage, 'c', cat("B", i), now + slot, now + 3 * slot});
      now += 3 * slot;
    }
    boxes.push_back({stage, 'c', "STEP", now, now + slot / 2});
  }
  return boxes;
}

inline StepEstimate hand_made_estimate(const HandMade& of) {
  StepEstimate estimate{.seconds = 5.2,
                        .low = 4.8,
                        .high = 5.6,
                        .breakdown = {.products = 3.0, .attention = 0.5, .pointwise = 0.4, .recompute = 0.1, .optimizer = 0.05, .host = 0.05,
                                      .tensor = 0.4,
                                      .context = 0.02, .experts = 0.03, .pipeline = 0.05, .data = 0.2, .bubble = 0.4},
                        .worst_stage = 0,
                        .tokens = 4194304,
                        .model_flops_causal = 1e18,
                        .mfu_causal = 0.412,
                        .mfu_noncausal = 0.444,
                        .bubble_share = 0.077,
                        .widest = "tensor parallel overlap"};
  for (int stage = 0; stage < of.pp; ++stage)
    estimate.stages.push_back({.stage = stage,
                               .layers = 10,
                               .busy = 4.5,
                               .parameters = 17.5e9,
                               .gradients = 17.5e9,
                               .optimizer = 13e9,
                               .activations = 16e9 * (of.pp - stage) / of.pp,
                               .buffers = 1e9,
                               .peak = 48e9 + 16e9 * (of.pp - stage) / of.pp,
                               .reserved = 52.7e9 + 16e9 * (of.pp - stage) / of.pp});
  Traffic& traffic = estimate.traffic;
  traffic.axes = {{.axis = "tp", .sent = 9e12, .on = {9e12}}, {.axis = "dp", .sent = 4e12, .on = {0, 4e12, 1e12}}};
  traffic.links = {{.link = LinkClass::kDomain, .all = 9e12, .busiest = 3e11, .where = 3, .capacity = 450e9},
                   {.link = LinkClass::kNic, .all = 4e12, .busiest = 1.1e12, .where = 1, .capacity = 400e9},
                   {.link = LinkClass::kLeafUp, .all = 1e12, .busiest = 2.5e12, .where = 1, .capacity = 400e9}};
  for (int node = 0; node < of.nodes; ++node) traffic.nodes.push_back({.out = 2.2e12 * node / of.nodes, .in = 1e11});
  traffic.reduction = 2.1e12;
  traffic.ranks = 8 * of.nodes;
  estimate.boxes = hand_made_boxes(of, estimate.seconds);
  return estimate;
}

inline Found hand_made_found(int index, const StepEstimate& of) {
  Found found{.candidate = {.tp = index % 3 == 0 ? 8 : 4, .pp = 1 << index % 4, .dp = 4, .zero = index % 2, .micro_batch = 1 + index % 2},
              .why = cat("slower than the next by ", index, " %")};
  found.candidate.virtual_stages = 1 + index;
  found.estimate = of;
  found.estimate.boxes.clear();
  found.estimate.traffic = {};
  found.estimate.seconds = of.seconds * (1 + 0.03 * index);
  for (StageEstimate& stage : found.estimate.stages) stage.reserved = 79e9 - 2e9 * index - 1e9 * stage.stage;
  found.quick = {.seconds = found.estimate.seconds, .memory = 79e9 - 2e9 * index};
  return found;
}

inline PlanPage hand_made_page(const HandMade& of = {}) {
  PlanPage page{.title = "70 B on 32 H100",
                .command = "lockstep plan run.toml --cluster \"4 nodes of 8xh100\" --html plan.html",
                .model = "llama, 80 blocks, 70 B parameters",
                .layout = "pp 2 (1f1b) x dp 2 x tp 8",
                .config = "[model]\npreset = \"llama3-70b\"\n",
                .mesh = hand_made_mesh(of),
                .candidate = {.tp = 8, .pp = of.pp, .dp = of.nodes / of.pp},
                .cluster = hand_made_cluster(of),
                .estimate = hand_made_estimate(of),
                .goodput = "a checkpoint every 31 minutes; 93.5 % of the time is training"};
  page.stack.name = "Hopper, 2024";
  page.stack.origins = {{"product_cap", "fitted to two sources"}};
  page.calls = {{.axis = "tp", .collective = "all_gather", .algorithm = "ring", .shape = {.ranks = 8, .largest_domain = 8, .per_node = 8},
                 .calls = 640, .bytes = 3e11, .seconds = 1.1},
                {.axis = "dp", .collective = "reduce_scatter", .algorithm = "tree", .shape = {.ranks = 2, .domains = 2, .nodes = 2, .sharing = 8},
                 .calls = 80, .bytes = 1e11, .seconds = 0.3}};
  SearchResult& search = page.search;
  for (int i = 0; i < 5; ++i) search.best.push_back(hand_made_found(i, page.estimate));
  for (int i = 4; i < 30; ++i) search.pareto.push_back(hand_made_found(i, page.estimate));
  search.rejected = {{Reject::kMemory, 4123}, {Reject::kHeads, 71}};
  search.misses = {{.candidate = {.tp = 4, .pp = 2, .dp = 4}, .reason = Reject::kMemory, .text = "needs 84.1 GB of 80.0"}};
  search.sensitivity = {{.constant = "product_cap", .minus = 0.071, .plus = -0.058}, {.constant = "tensor_exposed", .minus = -0.012, .plus = 0.013,
                                                                                      .order_changes = true}};
  search.candidates = 9321;
  search.seconds = 0.011;
  search.first_tier_rate = 1.4e6;
  page.what_ifs = {{.what = "NICs of 100 GB/s", .seconds = 5.1, .note = "data parallel waits 0.1 s less"}, {.what = "node 3 at 80 %",
                                                                                                            .seconds = 6.4, .note = "every step waits for it"}};
  page.run = {.tokens = 1e12, .useful = 0.9, .devices = 8 * of.nodes};
  page.commands = {{.what = "with the run.toml", .text = "lockstep train run.toml -n 32"}};
  page.why_not = {{.layout = "tp=16", .text = "tensor parallelism would leave the node"}};
  return page;
}

// 16,384 ranks: pp 16 x dp 128 x tp 8 on 2048 nodes in 64 leaves.
inline PlanPage large_page() { return hand_made_page({.nodes = 2048, .nodes_per_leaf = 32, .pp = 16, .microbatches = 512}); }

}  // namespace lockstep::plan
