// Predicted memory as tables, and what the numbers are made of.
#include <algorithm>

#include "lockstep/arch/slot_layout.h"
#include "lockstep/base/text.h"
#include "lockstep/program/names.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::program {
namespace {

// The most that a category has beyond what is there before the first action.
int64_t most_beyond(const MemoryTimeline& timeline, MemoryCategory category) {
  const auto index = static_cast<size_t>(category);
  int64_t most = 0;
  for (const MemoryPoint& point : timeline.points) most = std::max(most, point.within[index]);
  return most - timeline.before[index];
}

// How the states of a rank are made up.
class MadeOf {
 public:
  MadeOf(const Layout& layout, int rank, const MemoryTimeline& timeline)
      : layout_(layout),
        timeline_(timeline),
        rank_(rank),
        parameters_(cat(layout.flat_layout(rank).numel, " parameters x ")),
        part_(layout.shards() > 1 ? cat(" / ", layout.shards()) : "") {}

  std::string parameters() const {
    const std::string each = cat(parameters_, layout_.element_size(), bf16() ? " (bf16)" : " (fp32)");
    if (layout_.offload.parameters) return cat("on the host; ", beyond(MemoryCategory::kParameters), " fetched and gathered");
    if (!layout_.sharded_parameters()) return each;
    return cat(each, part_, ", and ", beyond(MemoryCategory::kParameters), " gathered");
  }
  std::string gradients() const {
    const std::string each = parameters_ + "4 (fp32)";
    if (!layout_.transient_gradients()) return each;
    const std::string open = cat(beyond(MemoryCategory::kGradients), " of layers that are not reduced yet");
    return layout_.offload.optimizer ? cat("summed on the host; ", open) : cat(each, part_, ", and ", open);
  }
  std::string optimizer() const {
    if (layout_.offload.optimizer) return "on the host";
    if (!layout_.owns_optimizer(rank_)) return "held by the server";
    const std::vector<const arch::OptimizerSpec*> optimizers = optimizers_here();
    if (optimizers.size() > 1) return cat(slots_text(optimizers), bf16() ? " and the fp32 master weights" : "");
    std::vector<std::string> bytes;
    for (const arch::StateSlot& slot : optimizers[0]->slots) bytes.push_back(cat(slot.element_size()));
    if (bf16()) bytes.emplace_back("4");
    return cat(parameters_, "(", join(bytes, " + "), ")", part_, ": ", optimizers[0]->slots_text,
               bf16() ? " and the fp32 master weights" : "");
  }
  std::string host() const {
    std::vector<std::string> parts;
    const bool copy = bf16() && layout_.offload.parameters;
    const std::vector<const arch::OptimizerSpec*> optimizers = optimizers_here();
    if (layout_.offload.optimizer && optimizers.size() > 1)
      parts.push_back(cat(parameters_, "(4 + 4", copy ? " + 2)" : ")", part_, ": gradients, fp32 values", copy ? ", bf16 values" : "",
                          "; ", slots_text(optimizers)));
    else if (layout_.offload.optimizer)
      parts.push_back(cat(parameters_, "(4 + ", optimizers[0]->slot_bytes(), " + 4", copy ? " + 2)" : ")", part_,
                          ": gradients, ", optimizers[0]->slots_text, ", fp32 values", copy ? ", bf16 values" : ""));
    if (layout_.offload.activations) parts.push_back("inputs of layers that recompute");
    return join(parts, "; ");
  }

 private:
  bool bf16() const { return layout_.precision == config::Precision::kBf16; }
  // In the order of their first parameters; a rank has at least one.
  std::vector<const arch::OptimizerSpec*> optimizers_here() const {
    std::vector<const arch::OptimizerSpec*> found;
    for (const arch::ParamSpec& spec : layout_.param_table(rank_))
      if (std::ranges::find(found, spec.update.optimizer) == found.end()) found.push_back(spec.update.optimizer);
    return found;
  }
  std::string slots_text(const std::vector<const arch::OptimizerSpec*>& optimizers) const {
    const std::vector<arch::ParamSpec> table = layout_.param_table(rank_);
    std::vector<std::string> parts;
    for (const arch::OptimizerSpec* optimizer : optimizers) {
      int64_t numel = 0;
      for (const arch::ParamSpec& spec : table) numel += spec.update.optimizer == optimizer ? spec.local_numel() : 0;
      parts.push_back(cat(optimizer->id, " ", numel, " parameters x ", optimizer->slot_bytes(), part_, ": ", optimizer->slots_text));
    }
    return join(parts, "; ");
  }
  std::string beyond(MemoryCategory category) const { return cat("at most ", bytes_text(most_beyond(timeline_, category))); }

  const Layout& layout_;
  const MemoryTimeline& timeline_;
  int rank_;
  std::string parameters_, part_;
};

std::string where_peak(const Program& program, const Layout& layout, int rank, const MemoryTimeline& timeline) {
  if (timeline.points.empty()) return "";
  const auto most = std::max_element(timeline.points.begin(), timeline.points.end(), [](const auto& a, const auto& b) {
    return device_total(a.within) < device_total(b.within);
  });
  const auto action = static_cast<size_t>(most - timeline.points.begin());
  const int num_layers = layout.num_layers();
  return cat("most of all together at one time: in ",
             action_text(program.list(rank)[action], program.buckets, num_layers));
}

}  // namespace

std::string memory_table(const Program& program, const Layout& layout, int rank) {
  const MemoryBytes bytes = predict_memory(layout, program, rank);
  const MemoryTimeline timeline = memory_timeline(layout, program, rank);
  const MadeOf made_of(layout, rank, timeline);
  std::vector<Row> rows;
  const auto row = [&](MemoryCategory category, std::string text) {
    rows.push_back({std::string(category_name(category)), bytes_text(bytes[category]), std::move(text)});
  };
  row(MemoryCategory::kParameters, made_of.parameters());
  row(MemoryCategory::kGradients, made_of.gradients());
  row(MemoryCategory::kOptimizer, made_of.optimizer());
  row(MemoryCategory::kActivations,
      cat("most that is alive between two actions: kept for backward, passed on, token ids of ",
          layout.num_microbatches(), layout.num_microbatches() == 1 ? " microbatch" : " microbatches"));
  row(MemoryCategory::kBuffers, layout.reduce_precision == config::Precision::kBf16 && layout.shards() > 1
                                    ? "largest workspace inside an action, and bf16 gradients on their way"
                                    : "largest workspace inside an action");
  rows.push_back({"total", bytes_text(bytes.total())});
  rows.push_back({"peak", bytes_text(bytes.peak), where_peak(program, layout, rank, timeline)});
  if (layout.device_limit > 0) {
    const int64_t left = layout.device_limit - bytes.peak;
    rows.push_back({"limit", bytes_text(layout.device_limit),
                    left >= 0 ? cat("memory.device_limit: ", bytes_text(left), " to spare")
                              : cat("memory.device_limit: ", bytes_text(-left), " too little, `lockstep train` refuses this")});
  }
  if (bytes[MemoryCategory::kHost] > 0) row(MemoryCategory::kHost, made_of.host());
  return cat("rank ", rank, "\n", table(rows, 1, 1));
}

}  // namespace lockstep::program
