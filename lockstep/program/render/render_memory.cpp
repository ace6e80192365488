// Predicted memory: as a table with what the numbers are made of, and over the program as a chart of text.
#include <algorithm>
#include <optional>

#include "lockstep/arch/expert_branch.h"
#include "lockstep/arch/layer_description.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::program {
namespace {

// How the states of a rank are made up.
class MadeOf {
 public:
  MadeOf(const Layout& layout, int rank, const MemoryTimeline& timeline)
      : layout_(layout),
        timeline_(timeline),
        rank_(rank),
        parameters_(cat(layout.flat_layout(rank).numel, " parameters x ")),
        part_(part_text(layout)) {
    for (const arch::FlatUnit& unit : layout.flat_layout(rank).units)
      (layout.precision_of(unit.group) == config::Precision::kBf16 ? bf16_ : fp32_) += unit.numel();
    for (const arch::ParamSpec& spec : layout.param_table(rank)) {
      auto known = std::ranges::find(optimizers_, spec.update.optimizer, &Part::optimizer);
      if (known == optimizers_.end()) known = optimizers_.insert(known, Part{.optimizer = spec.update.optimizer});
      known->numel += spec.local_numel();
    }
  }

  std::string parameters() const {
    const std::string each = two_types() ? cat(bf16_, " parameters x 2 (bf16) and ", fp32_, " x 4 (fp32)")
                                         : cat(parameters_, layout_.element_size(), bf16() ? " (bf16)" : " (fp32)");
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
    const std::string master = !bf16() ? "" : two_types() ? cat(" and the fp32 master weights of ", bf16_) : " and the fp32 master weights";
    if (optimizers_.size() > 1) return slots_text() + master;
    std::vector<std::string> bytes;
    for (const arch::StateSlot& slot : optimizers_[0].optimizer->slots) bytes.push_back(cat(config::bytes_of(slot.dtype)));
    if (bf16() && !two_types()) bytes.emplace_back("4");
    return cat(parameters_, "(", join(bytes, " + "), ")", two_types() ? cat(" + ", bf16_, " x 4") : "", part_, ": ",
               optimizers_[0].optimizer->slots_text, master);
  }
  std::string host() const {
    std::vector<std::string> parts;
    if (layout_.offload.optimizer) {
      const bool copy = bf16() && layout_.offload.parameters, several = optimizers_.size() > 1;
      const arch::OptimizerSpec& first = *optimizers_[0].optimizer;
      parts.push_back(cat(parameters_, "(4 + ", several ? "" : cat(first.slot_bytes(), " + "), copy && !two_types() ? "4 + 2)" : "4)",
                          copy && two_types() ? cat(" + ", bf16_, " x 2") : "", part_, ": gradients, ",
                          several ? "" : cat(first.slots_text, ", "), copy ? "fp32 values, bf16 values" : "fp32 values",
                          several ? cat("; ", slots_text()) : ""));
    }
    if (layout_.offload.activations) parts.push_back("inputs of layers that recompute");
    return join(parts, "; ");
  }

 private:
  bool two_types() const { return bf16_ > 0 && fp32_ > 0; }  // some are used in fp32 in a bf16 run
  // Experts have shards of their own.
  static std::string part_text(const Layout& layout) {
    const int dense = layout.shards(), experts = layout.model.has_experts() ? layout.shards(arch::ParameterGroup::kExperts) : dense;
    if (experts != dense) return cat(" / ", dense, ", of experts / ", experts);
    return dense > 1 ? cat(" / ", dense) : "";
  }
  bool bf16() const { return layout_.precision == config::Precision::kBf16; }
  std::string slots_text() const {
    std::vector<std::string> parts;
    for (const auto& [optimizer, numel] : optimizers_)
      parts.push_back(cat(optimizer->id, " ", numel, " parameters x ", optimizer->slot_bytes(), part_, ": ", optimizer->slots_text));
    return join(parts, "; ");
  }
  // The most that a category has beyond what is there before the first action.
  std::string beyond(MemoryCategory category) const {
    const auto index = static_cast<size_t>(category);
    int64_t most = 0;
    for (const MemoryPoint& point : timeline_.points) most = std::max(most, point.within[index]);
    return cat("at most ", bytes_text(most - timeline_.before[index]));
  }

  const Layout& layout_;
  const MemoryTimeline& timeline_;
  int rank_;
  std::string parameters_, part_;
  int64_t bf16_ = 0, fp32_ = 0;  // of the parameters, padding included
  struct Part {
    const arch::OptimizerSpec* optimizer = nullptr;
    int64_t numel = 0;  // of the parameters that it updates
  };
  std::vector<Part> optimizers_{};  // in the order of their first parameters; a rank has at least one
};

std::string where_peak(const Program& program, const Layout& layout, int rank, const MemoryTimeline& timeline) {
  if (timeline.points.empty()) return "";
  const auto most = std::max_element(timeline.points.begin(), timeline.points.end(), [](const auto& a, const auto& b) {
    return device_total(a.within) < device_total(b.within);
  });
  const auto action = static_cast<size_t>(most - timeline.points.begin());
  return cat("most of all together at one time: in ", action_text(program.list(rank)[action], program.buckets, layout.num_layers()));
}

constexpr std::string_view kWorstCase =
    "experts: of the worst case, that all tokens of the ranks that share them come to one; with balanced routing they keep less\n";

// What the bytes of experts are a bound of.
std::string bound_text(const Layout& layout) {
  if (layout.ep * layout.etp == 1) return "";
  const arch::ExpertRows rows(layout.model, layout.cost_input(0));
  if (rows.slots > 0)
    return cat("experts: of messages with ", rows.slots, " rows of each rank for each expert, as moe.static_buffers has them whatever the routing\n");
  if (rows.limit == 0) return std::string(kWorstCase);
  return cat("experts: room for ", rows.received, " rows, moe.imbalance_limit ", number_text(*layout.moe.imbalance_limit),
             " x balanced routing: a bound. Where more come to a rank the layer runs in rounds that keep nothing\n");
}

constexpr int kRows = 16, kColumns = 100;
constexpr std::string_view kLetters = "pgoab";  // by category, from the bottom

// One column of the chart: the action of several neighbours that holds most.
struct Column {
  MemoryArray within{};
  Action action{};
};

std::vector<Column> columns_of(const std::vector<Action>& actions, const MemoryTimeline& timeline) {
  const size_t count = std::min<size_t>(kColumns, actions.size());
  std::vector<Column> columns(count);
  for (size_t i = 0; i < actions.size(); ++i) {
    Column& column = columns[i * count / actions.size()];
    const MemoryPoint& point = timeline.points[i];
    if (device_total(point.within) > device_total(column.within)) column = {.within = point.within, .action = actions[i]};
  }
  return columns;
}

// What stands at `height` bytes of a stack; nothing above it.
std::optional<char> at_height(const MemoryArray& bytes, double height) {
  double below = 0;
  for (size_t i = 0; i < kLetters.size(); ++i) {
    below += static_cast<double>(bytes[i]);
    if (height < below) return kLetters[i];
  }
  return std::nullopt;
}

char letter_of(const Action& action, EffectTable& effects) {
  if (action.kind == ActionKind::kForward) return 'F';
  if (computes(action.kind)) return words_of(action.kind).comes_and_goes ? 'R' : 'B';
  const Effects& of = effects.of(action);
  const bool updates = std::ranges::any_of(of.touches, [](const Touch& touch) { return touch.what == Resource::kStates; });
  return of.lane == Lane::kCompute && updates ? 'S' : '.';
}

// "m0    m1": where the first action of each microbatch stands, as far as there is room.
std::string microbatch_marks(const std::vector<Column>& columns) {
  std::string marks;
  int last = -1;
  for (size_t i = 0; i < columns.size(); ++i) {
    const int microbatch = columns[i].action.microbatch;
    if (microbatch <= last || marks.size() > i) continue;
    marks += std::string(i - marks.size(), ' ') + cat("m", microbatch, " ");
    last = microbatch;
  }
  return marks;
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

std::string kept_table(const Layout& layout, int rank) {
  constexpr arch::Recompute kChoices[] = {arch::Recompute::kNone, arch::Recompute::kSelective, arch::Recompute::kFull};
  const std::vector<int> shown = blocks_shown(layout.model);
  std::vector<Row> rows;
  for (const int layer : shown) {
    Row& title = rows.emplace_back(Row{shown.size() == 1 ? std::string("a block keeps") : cat("a block ", block_word(layout.model, layer), " keeps")});
    for (const arch::Recompute choice : kChoices) title.push_back(config::name_of(choice));
    int64_t sums[std::size(kChoices)] = {};
    for (const arch::Value& part : arch::block_kept_parts(layout.model, layout.cost_input(rank), layer)) {
      Row& row = rows.emplace_back(Row{cat("  ", part.kept.as)});
      for (size_t i = 0; i < std::size(kChoices); ++i) {
        row.push_back(part.kept_by(kChoices[i]) ? bytes_text(part.bytes) : "again");
        if (part.kept_by(kChoices[i])) sums[i] += part.bytes;
      }
    }
    Row sum{"  in all"};
    for (const int64_t bytes : sums) sum.push_back(bytes_text(bytes));
    rows.push_back(std::move(sum));
  }
  int64_t blocks[std::size(kChoices)] = {};
  for (int64_t i = 0; i < layout.model.layers; ++i)
    blocks[static_cast<size_t>(layout.recompute_of(static_cast<int>(i) + 1))] += 1;
  Row count{"blocks of this layout"};
  for (const int64_t of_choice : blocks) count.push_back(cat(of_choice));
  rows.push_back(std::move(count));
  return cat(table(rows, 1, std::size(kChoices)), bound_text(layout));
}

std::string draw_memory(const Program& program, const Layout& layout, int rank) {
  const std::vector<Action>& actions = program.list(rank);
  const MemoryTimeline timeline = memory_timeline(layout, program, rank);
  const std::vector<Column> stacks = columns_of(actions, timeline);
  const MemoryBytes bytes = predict_memory(layout, program, rank);
  const bool shows_limit = layout.device_limit > 0 && layout.device_limit < 2 * bytes.peak;
  const auto top = static_cast<double>(std::max(bytes.peak, shows_limit ? layout.device_limit : 0));
  const int limit_row = shows_limit ? std::max(0, kRows - 1 - static_cast<int>(static_cast<double>(layout.device_limit) / top * kRows)) : -1;

  std::string text = cat("rank ", rank, ", the most of the device in each action",
                         stacks.size() < actions.size() ? cat(" (", actions.size(), " actions in ", stacks.size(), " columns)") : "",
                         "\n");
  for (int row = 0; row < kRows; ++row) {
    std::string line;
    for (const Column& stack : stacks)
      line += at_height(stack.within, (kRows - row - 0.5) / kRows * top).value_or(row == limit_row ? '-' : ' ');
    const bool labelled = row == 0 || row == kRows / 2;
    const auto label = static_cast<int64_t>(top * (kRows - row) / kRows);
    text += cat(pad_left(labelled ? bytes_text(label) : "", 10), " |", line.substr(0, line.find_last_not_of(' ') + 1), "\n");
  }
  std::string kinds;
  EffectTable effects(layout, program.buckets, rank);
  for (const Column& stack : stacks) kinds += letter_of(stack.action, effects);
  text += cat(pad_left("0", 10), " +", kinds, "\n", pad_left("", 12), microbatch_marks(stacks), "\n");
  text += "p parameters, g gradients, o optimizer, a activations, b buffers; F forward, B backward, R recompute, S step\n";
  if (layout.device_limit > 0) text += cat("limit ", bytes_text(layout.device_limit), shows_limit ? ": the line of -" : "", "\n");
  if (bytes[MemoryCategory::kHost] > 0) text += cat("host: at most ", bytes_text(bytes[MemoryCategory::kHost]), "\n");
  return text;
}

}  // namespace lockstep::program
