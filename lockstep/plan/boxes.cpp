#include "lockstep/plan/boxes.h"

#include <algorithm>
#include <optional>

namespace lockstep::plan {
namespace {

using program::Action;
using program::ActionKind;

// Nothing for what only waits or gives memory back.
std::optional<BoxKind> kind_of(ActionKind kind, const program::Effects& effects) {
  const auto all = [&](program::Access how) { return std::ranges::all_of(effects.touches, [&](const program::Touch& touch) { return touch.how == how; }); };
  if (program::computes(kind)) return std::ranges::find(kBoxKinds, program::work_of(kind), &BoxWords::work)->kind;
  if (effects.lane == program::Lane::kCopies) return BoxKind::kCopy;
  if (all(effects.lane == program::Lane::kChannel ? program::Access::kCreate : program::Access::kDrop)) return std::nullopt;
  return effects.collective || effects.lane != program::Lane::kCompute ? BoxKind::kNetwork : BoxKind::kUpdate;
}

}  // namespace

int stage_of(const Action& action, const program::Layout& layout) {
  return action.layer >= 0 ? layout.pipeline.stage_of(action.layer) : action.stage;
}

std::vector<std::vector<Box>> boxes(const program::Program& program, const program::Layout& layout, const Spans& spans,
                                    const BoxOptions& options) {
  std::vector<std::vector<bool>> critical;
  for (const std::vector<Span>& row : spans) critical.emplace_back(row.size());
  if (options.critical_path)
    for (const ActionRef& ref : *options.critical_path)
      of_action(critical, ref) = true;
  std::vector<std::vector<Box>> result;
  for (size_t rank = 0; rank < spans.size(); ++rank) {
    std::vector<Box>& row = result.emplace_back();
    program::EffectTable effects(layout, program.buckets, static_cast<int>(rank));
    int computing = -1;  // the last box on the lane of computing
    for (size_t i = 0; i < spans[rank].size(); ++i) {
      const Action& action = program.list(static_cast<int>(rank))[i];
      const std::optional<BoxKind> kind = kind_of(action.kind, effects.of(action));
      if (!kind || spans[rank][i].seconds() <= 0) continue;
      const Box box{.kind = *kind,
                    .stage = stage_of(action, layout),
                    .microbatch = action.microbatch,
                    .start = spans[rank][i].start,
                    .end = spans[rank][i].end,
                    .first = static_cast<int>(i),
                    .critical = critical[rank][i]};
      if (box.computes() && computing >= 0) {
        Box& before = row[static_cast<size_t>(computing)];
        const bool same = before.kind == box.kind && before.stage == box.stage && before.microbatch == box.microbatch;
        if (same && box.start - before.end <= options.gap) {
          before.end = box.end;
          before.critical = before.critical || box.critical;
          continue;
        }
      }
      if (box.computes()) computing = static_cast<int>(row.size());
      row.push_back(box);
    }
  }
  return result;
}

}  // namespace lockstep::plan
