// Memory over the program, as a chart of text.
#include <algorithm>
#include <optional>

#include "lockstep/base/text.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::program {
namespace {

constexpr int kRows = 16;
constexpr std::string_view kLetters = "pgoab";  // by category, from the bottom

// One column of the chart: the action of several neighbours that holds most.
struct Column {
  MemoryArray within{};
  Action action{};
};

std::vector<Column> columns_of(const std::vector<Action>& actions, const MemoryTimeline& timeline, size_t wanted) {
  const size_t count = std::min(wanted, actions.size());
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

std::string draw_memory(const Program& program, const Layout& layout, int rank, int columns) {
  const std::vector<Action>& actions = program.list(rank);
  const MemoryTimeline timeline = memory_timeline(layout, program, rank);
  const std::vector<Column> stacks = columns_of(actions, timeline, static_cast<size_t>(columns));
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
