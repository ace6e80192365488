#include "lockstep/plan/drawing.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <set>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/program/effects.h"

namespace lockstep::plan {
namespace {

using program::Action;

// Nothing for what only waits or gives memory back.
std::optional<BoxKind> kind_of(program::ActionKind kind, const program::Effects& effects) {
  const auto all = [&](program::Access how) { return std::ranges::all_of(effects.touches, [&](const program::Touch& touch) { return touch.how == how; }); };
  if (program::computes(kind)) return std::ranges::find(kBoxKinds, program::work_of(kind), &BoxWords::work)->kind;
  if (effects.lane == program::Lane::kCopies) return BoxKind::kCopy;
  if (all(effects.lane == program::Lane::kChannel ? program::Access::kCreate : program::Access::kDrop)) return std::nullopt;
  return effects.collective || effects.lane != program::Lane::kCompute ? BoxKind::kNetwork : BoxKind::kUpdate;
}

std::string label(const Box& box, const program::Pipeline& pipeline) {
  if (box.kind == BoxKind::kUpdate) return std::string(letter_of(box.kind));
  const std::string text = cat(letter_of(box.kind), box.microbatch);
  if (pipeline.virtual_stages == 1) return text;
  return cat(text, static_cast<char>('a' + box.stage / pipeline.ranks % 26));
}

// "." where nothing runs, "--" where something goes on.
std::vector<std::string> cells(const std::vector<Box>& boxes, const program::Pipeline& pipeline, double unit) {
  std::vector<std::string> row;
  for (const Box& box : boxes) {
    if (!box.computes()) continue;
    const auto begin = static_cast<size_t>(std::max(0.0, std::round(box.start / unit)));
    const auto end = static_cast<size_t>(std::max(0.0, std::round(box.end / unit)));
    if (row.size() < std::max(end, begin + 1)) row.resize(std::max(end, begin + 1), ".");
    if (row[begin] == "." || row[begin] == "--") row[begin] = label(box, pipeline);
    for (size_t i = begin + 1; i < end; ++i) row[i] = "--";
  }
  return row;
}

// Of F, B, I, W, RECOMPUTE and what sends or receives; of others -1.
int stage_of(const Action& action, const program::Layout& layout) {
  return action.layer >= 0 ? layout.pipeline.stage_of(action.layer) : action.stage;
}

constexpr const char* kThreads[] = {"compute", "network", "copies"};  // of a trace
int thread_of(const program::Effects& effects) {
  if (effects.lane == program::Lane::kCopies) return 2;
  return effects.lane == program::Lane::kCompute && !effects.collective ? 0 : 1;
}

OrderedJson name_of(const char* what, int rank, int thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

// One end of an arrow, which binds to the event that encloses it.
OrderedJson arrow_end(const char* phase, size_t id, int rank, double time) {
  OrderedJson event = {{"ph", phase}, {"name", "transfer"}, {"cat", "transfer"}, {"id", id}, {"pid", rank}, {"tid", 0}, {"ts", time}};
  if (phase[0] == 'f') event["bp"] = "e";
  return event;
}

}  // namespace

std::vector<std::vector<Box>> boxes(const program::Program& program, const program::Layout& layout, const Spans& spans, double gap,
                                    const std::vector<ActionRef>* critical_path) {
  std::set<ActionRef> critical;
  if (critical_path) critical.insert(critical_path->begin(), critical_path->end());
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
                    .critical = critical.contains({static_cast<int>(rank), static_cast<int>(i)})};
      if (box.computes() && computing >= 0) {
        Box& before = row[static_cast<size_t>(computing)];
        const bool same = before.kind == box.kind && before.stage == box.stage && before.microbatch == box.microbatch;
        if (same && box.start - before.end <= gap) {
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

std::string grid_text(const program::Program& program, const program::Layout& layout, const Spans& spans,
                      const GridOptions& options) {
  const std::vector<std::vector<Box>> drawn = boxes(program, layout, spans, options.unit * 1e-6);
  std::vector<int> ranks = options.ranks;
  for (int rank = 0; options.ranks.empty() && rank < static_cast<int>(drawn.size()); ++rank) ranks.push_back(rank);
  std::vector<std::vector<std::string>> rows;
  size_t columns = 0, width = 2, margin = std::string_view("time").size();
  for (const int rank : ranks) {
    rows.push_back(cells(drawn.at(static_cast<size_t>(rank)), layout.pipeline, options.unit));
    columns = std::max(columns, rows.back().size());
    for (const std::string& cell : rows.back()) width = std::max(width, cell.size());
    margin = std::max(margin, cat("rank ", rank).size());
  }
  margin += 2;
  const size_t room = static_cast<size_t>(std::max(options.width, 40)) - margin;
  const size_t at_once = std::max<size_t>(5, room / (width + 1) / 5 * 5);
  std::string text;
  const auto line = [&](const std::string& name, size_t begin, const auto& cell) {
    std::string row = pad_right(name, margin);
    for (size_t i = begin; i < std::min(columns, begin + at_once); ++i) row += pad_right(cell(i), width + 1);
    text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  };
  for (size_t begin = 0; begin < columns; begin += at_once) {
    if (begin > 0) text += "\n";
    line("time", begin, [&](size_t i) { return i % 5 == 0 ? cat(i) : std::string(); });
    for (size_t row = 0; row < rows.size(); ++row)
      line(cat("rank ", ranks[row]), begin, [&](size_t i) { return i < rows[row].size() ? rows[row][i] : std::string("."); });
  }
  return text;
}

std::string chrome_trace(const program::Program& program, const program::Layout& layout, const Spans& spans, bool in_units, const CallsOfRanks& calls) {
  const double scale = in_units ? 1e3 : 1e6;
  OrderedJson events = OrderedJson::array();
  for (int rank = 0; rank < program.world_size(); ++rank) {
    events.push_back(name_of("process_name", rank, 0, cat("rank ", rank, layout.mesh.world_size() > 1 ? " " + layout.mesh.describe(rank) : "")));
    events.push_back({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", rank}, {"tid", 0}, {"args", {{"sort_index", rank}}}});
    for (const int thread : {0, 1, 2}) events.push_back(name_of("thread_name", rank, thread, kThreads[thread]));
    program::EffectTable effects(layout, program.buckets, rank);
    for (size_t i = 0; i < program.list(rank).size(); ++i) {
      const Action& action = program.list(rank)[i];
      const Span& span = spans[static_cast<size_t>(rank)][i];
      if (span.seconds() <= 0 || program::words_of(action.kind).receives) continue;
      OrderedJson args = OrderedJson::object();
      if (const int stage = stage_of(action, layout); stage >= 0) args["stage"] = stage;
      if (action.microbatch >= 0) args["microbatch"] = action.microbatch;
      events.push_back({{"ph", "X"},
                        {"name", program::action_text(action, program.buckets, layout.num_layers())},
                        {"cat", program::action_name(action.kind)},
                        {"pid", rank},
                        {"tid", thread_of(effects.of(action))},
                        {"ts", span.start * scale},
                        {"dur", span.seconds() * scale},
                        {"args", args}});
    }
    if (calls.empty()) continue;
    for (const CallRecord& call : calls[static_cast<size_t>(rank)])
      events.push_back({{"ph", "X"},
                        {"name", call.what},
                        {"cat", "inside layers"},
                        {"pid", rank},
                        {"tid", 1},
                        {"ts", call.start * scale},
                        {"dur", (call.end - call.start) * scale},
                        {"args", {{"waited_us", call.waited * scale}}}});
  }
  // From what was computed last before the SEND to what uses it first.
  const Matching matching = match(program, layout);
  for (size_t id = 0; id < matching.transfers.size(); ++id) {
    const ActionRef source = computed_up_to(program, matching.transfers[id].send);
    const ActionRef& user = matching.transfers[id].user;
    if (source.rank < 0 || user.rank < 0) continue;
    const Span& from = of_action(spans, source);
    const Span& to = of_action(spans, user);
    events.push_back(arrow_end("s", id, source.rank, (from.start + from.seconds() * 0.999) * scale));
    events.push_back(arrow_end("f", id, user.rank, (to.start + to.seconds() * 0.001) * scale));
  }
  const OrderedJson json = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return json.dump() + "\n";
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) result += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : std::string(1, c);
  return result;
}

std::string decimal(double value, int digits) {
  std::string text = cat(std::fixed, std::setprecision(digits), value);
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string percent_text(double share) { return decimal(100 * share, 1) + " %"; }

std::string time_text(double seconds, bool in_units, std::optional<double> scale) {
  if (in_units) return cat(decimal(seconds, 2), seconds == 1 ? " unit" : " units");
  const double size = std::abs(scale.value_or(seconds));
  if (size >= 1) return decimal(seconds, 3) + " s";
  if (size >= 1e-3) return decimal(seconds * 1e3, size >= 0.1 ? 1 : 2) + " ms";
  return decimal(seconds * 1e6, 1) + " us";
}

double round_step(double range, int parts) {
  if (!(range > 0)) return 1;
  const double least = range / parts;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

int64_t peak_bytes(const program::MemoryTimeline& timeline) {
  int64_t peak = program::device_total(timeline.before);
  for (const program::MemoryPoint& point : timeline.points) peak = std::max(peak, program::device_total(point.within));
  return peak;
}

}  // namespace lockstep::plan
