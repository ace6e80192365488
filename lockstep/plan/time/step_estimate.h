// How long a step of a layout takes on a cluster, what of that is what, and what memory it needs: the program of the layout with the times of
// its actions on this cluster, walked by one pipeline with lanes for computing, links inside a domain and NICs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/plan/cluster/links.h"
#include "lockstep/plan/cluster/placement.h"
#include "lockstep/plan/time/stack.h"
#include "lockstep/program/layout.h"

namespace lockstep::plan {

struct ProductTable;  // product_seconds.h

// Of linears; all else is as the layout's precision says.
enum class Linears { kAsLayout, kFp8 };

struct EstimateOptions {
  Linears linears = Linears::kAsLayout;
  Order order = Order::kUsual;
  double imbalance = 1;       // of experts: load of the busiest rank over the mean
  bool memory = true;         // predicted, too: without it there are no stages, and `fits` is true
  bool traffic = true;        // counted link by link, too
  bool spans = false;         // when each action runs is kept: for drawings
  const ProductTable* products = nullptr;  // seconds of products that were measured, in place of the formula; outlives the estimate
};

// Seconds of the rank that a step waits for most; they add up to the step.
struct Breakdown {
  double products = 0, attention = 0, pointwise = 0, recompute = 0, optimizer = 0, host = 0;
  double tensor = 0, context = 0, experts = 0, pipeline = 0, data = 0;  // communication that is waited for
  double bubble = 0;
  double sum() const { return products + attention + pointwise + recompute + optimizer + host + tensor + context + experts + pipeline + data + bubble; }
};

// Of a stage's ranks.
struct StageEstimate {
  int stage = 0;      // coordinate on pp
  int layers = 0;     // blocks
  double busy = 0;    // seconds
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0, buffers = 0;  // bytes at most
  double peak = 0;    // bytes that are allocated at one time at most
  double reserved = 0;  // with context, communicators and fragmentation: what the device must have
};

struct TimedBox {  // of a drawing
  int stage = 0;
  char lane = 'c';  // c computes, t transfers, n network
  std::string label{};
  double start = 0, end = 0;
};

// Of a step: by less than that, two are as fast.
inline constexpr double kSameStep = 0.0005;

struct StepEstimate {
  double seconds = 0;
  double low = 0, high = 0;  // band that holds 9 of 10
  Breakdown breakdown{};
  std::vector<StageEstimate> stages{};
  int worst_stage = 0;       // which needs most memory
  double tokens = 0;         // of a step
  double model_flops_causal = 0, model_flops_noncausal = 0;  // of a step
  double mfu_causal = 0, mfu_noncausal = 0;                  // over the bf16 peak
  double bubble_share = 0;   // of the step
  bool fits = true;
  Traffic traffic{};         // where it is asked for
  std::vector<TimedBox> boxes{};  // likewise
  std::string widest{};      // the term that makes the band wide: "tensor parallel overlap"
  double tokens_per_second() const { return tokens / seconds; }
  double most_reserved() const {  // bytes of the stage that needs most; 0 without stages
    double most = 0;
    for (const StageEstimate& stage : stages) most = std::max(most, stage.reserved);
    return most;
  }
};

// InternalError where the layout has more ranks than the cluster has devices.
StepEstimate estimate_step(const program::Layout& layout, const Cluster& cluster, const Stack& stack, const EstimateOptions& options = {});

// One layer for one microbatch on one rank, seconds; the sum of its parts. Used by the walk and by the first tier of the search.
struct LayerSeconds {
  struct Part {
    double products = 0, attention = 0, pointwise = 0;
    double tensor = 0, context = 0, experts = 0;  // of communication inside the layer, what is exposed
    double sum() const { return products + attention + pointwise + tensor + context + experts; }
  };
  Part forward{}, input{}, weight{};
  Part restore{}, again{};  // of a block that recomputes selectively, or fully
};
LayerSeconds layer_seconds(const program::Layout& layout, int layer, int rank, const Placement& placement, const Stack& stack, const EstimateOptions& options);

}  // namespace lockstep::plan
