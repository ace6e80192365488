#include "lockstep/plan/drawing.h"

#include <algorithm>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {
namespace {

constexpr int kWidth = 1200;  // pixels
constexpr size_t kMostRanks = 64;
constexpr double kLeft = 84, kRight = 20, kAxis = 30;  // margins
constexpr double kLegend = 33, kLine = 18;           // of the legend: its first line, from line to line
constexpr double kCompute = 26, kNetwork = 8, kMemory = 26, kGap = 10;
constexpr double kDigit = 6.4, kPadding = 3;  // of a number in a box
constexpr size_t kMostTitles = 4000;          // boxes up to which each says what it is

// Of the second, fourth, .. stage of a rank a lighter tint.
constexpr std::string_view kStyle = R"(
.ls-svg{font-family:system-ui,"DejaVu Sans",Verdana,sans-serif;font-size:11px;font-variant-numeric:tabular-nums}
.ls-svg .bg{fill:#fff}.ls-svg text{fill:#1c1f24}.ls-svg .n{fill:#111;text-anchor:middle}.ls-svg .h{font-size:14px;font-weight:600}
.ls-svg .q{fill:#5a626e}.ls-svg .r{text-anchor:end}.ls-svg .m{text-anchor:middle}.ls-svg .t{stroke:#d5d9df;stroke-width:1}
.ls-svg .hb{fill:#f3f4f6}.ls-svg .hl{stroke:#c3c8d0;stroke-width:1.2}
.ls-svg .F{fill:#56b4e9}.ls-svg .F2{fill:#a9d8f3}.ls-svg .B,.ls-svg .I{fill:#e69f00}.ls-svg .B2,.ls-svg .I2{fill:#f4cf7f}
.ls-svg .W{fill:#2fb08a}.ls-svg .W2{fill:#97d8c4}.ls-svg .R{fill:#d58fb7}.ls-svg .R2{fill:#e9c4da}.ls-svg .U{fill:#f0e442}
.ls-svg .C{fill:#6b7280}.ls-svg .H{fill:#a67c52}.ls-svg .k{stroke:#fff;stroke-width:.7}
.ls-svg .c{stroke:#111;stroke-width:2}.ls-svg .d{stroke-width:1}.ls-svg .s{fill:#c9cdd4}.ls-svg .a{fill:#8f86c9}
@media screen and (prefers-color-scheme:dark){
.ls-svg .bg{fill:#15181d}.ls-svg text{fill:#e4e7eb}.ls-svg .n{fill:#111}.ls-svg .q{fill:#9aa3af}.ls-svg .t{stroke:#2c323b}
.ls-svg .hb{fill:#20252c}.ls-svg .hl{stroke:#4b5461}.ls-svg .k{stroke:#15181d}.ls-svg .c{stroke:#fff}.ls-svg .C{fill:#8b93a1}
.ls-svg .s{fill:#4a515c}.ls-svg .a{fill:#8178bd}}
)";

std::string class_of(const Box& box, const program::Pipeline& pipeline) {
  const bool lighter = pipeline.virtual_stages > 1 && box.stage >= 0 && box.stage / pipeline.ranks % 2 == 1;
  const std::string name(letter_of(box.kind));
  return lighter && box.kind <= BoxKind::kRecompute ? name + "2" : name;
}

int64_t states_total(const program::MemoryArray& bytes) {
  using enum program::MemoryCategory;
  const program::MemoryBytes of{.bytes = bytes};
  return of[kParameters] + of[kGradients] + of[kOptimizer];
}

template <typename X, typename Y>
std::string label(const char* style, const X& x, const Y& y, const std::string& text) {
  return cat("<text class=\"", style, "\" x=\"", x, "\" y=\"", y, "\">", text, "</text>");
}

class Gantt {
 public:
  Gantt(const program::Program& program, const program::Layout& layout, const Spans& spans, const GanttOptions& options)
      : program_(program), layout_(layout), spans_(spans), options_(options) {
    seconds_ = std::max(options.seconds, utilisation(program, spans).step_seconds);
    if (seconds_ <= 0) seconds_ = 1;
    boxes_ = boxes(program, layout, spans, seconds_ / 2000, options.critical_path);
    shown_ = std::min(boxes_.size(), kMostRanks);
    size_t count = 0;
    for (const std::vector<Box>& row : boxes_) {
      count += row.size();
      for (const Box& box : row) present_.insert(box.kind);
    }
    if (options.calls && std::ranges::any_of(*options.calls, [](const auto& calls) { return !calls.empty(); })) present_.insert(BoxKind::kNetwork);
    network_ = present_.contains(BoxKind::kNetwork) || present_.contains(BoxKind::kCopy);
    titles_ = count <= kMostTitles;
    for (const program::MemoryTimeline& timeline : options.memory) memory_scale_ = std::max(memory_scale_, peak_bytes(timeline));
    row_height_ = kCompute + (network_ ? kNetwork + 2 : 0) + kMemory + 3 + kGap;
  }

  std::string text() {
    const std::string entries = legend();
    const double rows = row_height_ * static_cast<double>(shown_);
    const bool note = shown_ < boxes_.size();
    const double height = top_ + rows + kAxis + (note ? 16 : 0);
    std::string svg = cat("<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"ls-svg\" viewBox=\"0 0 ", kWidth, " ",
                          decimal(height), "\" width=\"", kWidth, "\" height=\"", decimal(height), "\" role=\"img\">\n<title>",
                          escaped(options_.title), "</title>\n<style>", kStyle, "</style>\n<defs><pattern id=\"", options_.id,
                          "-hatch\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
                          "<rect class=\"hb\" width=\"7\" height=\"7\"/><line class=\"hl\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"7\"/>"
                          "</pattern></defs>\n<rect class=\"bg\" width=\"", kWidth, "\" height=\"", decimal(height), "\"/>\n");
    svg += label("h", kLeft, 20, escaped(options_.title)) + "\n" + entries + axis(top_ + rows);
    for (size_t rank = 0; rank < shown_; ++rank) svg += row(rank);
    if (note) svg += label("q", kLeft, decimal(height - 6), cat(boxes_.size() - shown_, " more ranks")) + "\n";
    return svg + "</svg>\n";
  }

 private:
  double x(double seconds) const { return kLeft + seconds / seconds_ * (kWidth - kLeft - kRight); }

  // Says how far down the rows begin.
  std::string legend() {
    std::string svg;
    double at = kLeft, line = kLegend;
    const auto entry = [&](const std::string& sample, std::string_view name) {
      const double width = 19 + 6.8 * static_cast<double>(name.size());
      if (at + width > kWidth - kRight) {
        at = kLeft;
        line += kLine;
      }
      svg += cat("<g transform=\"translate(", decimal(at), ",", line, ")\">", sample, "<text x=\"19\" y=\"10\">", name, "</text></g>\n");
      at += width + 14;
    };
    const auto box = [&](std::string_view name) { return cat("<rect class=\"", name, "\" width=\"14\" height=\"12\" rx=\"1.5\"/>"); };
    for (const BoxWords& words : kBoxKinds)
      if (words.kind == BoxKind::kForward || present_.contains(words.kind)) entry(box(words.letter), words.legend);
    entry(cat("<rect fill=\"url(#", options_.id, "-hatch)\" width=\"14\" height=\"12\"/>"), "waiting");
    if (options_.critical_path) entry("<rect class=\"hb c\" x=\"1\" y=\"1\" width=\"12\" height=\"10\"/>", "critical path");
    if (layout_.pipeline.virtual_stages > 1) entry(box("F2"), "second stage of the rank");
    entry(box("s"), "memory: states");
    entry(box("a"), "activations, buffers");
    top_ = line + 29;
    return svg;
  }

  std::string axis(double bottom) const {
    std::string svg;
    const double step = round_step(seconds_, 12);
    for (int i = 0; i * step <= seconds_ * (1 + 1e-9); ++i) {
      const std::string at = decimal(x(i * step), 2);
      const std::string mark = options_.in_units ? decimal(i * step, 2) : time_text(i * step, false, seconds_);
      svg += cat("<line class=\"t\" x1=\"", at, "\" y1=\"", top_ - 6, "\" x2=\"", at, "\" y2=\"", decimal(bottom), "\"/>",
                 label("q m", at, decimal(bottom + 14), mark), "\n");
    }
    if (options_.in_units) svg += label("q r", kLeft - 12, decimal(bottom + 14), "units") + "\n";
    return svg;
  }

  std::string row(size_t rank) const {
    const double top = top_ + row_height_ * static_cast<double>(rank);
    std::string svg = cat("<g transform=\"translate(0,", decimal(top), ")\">\n",
                          label("r", kLeft - 12, kCompute / 2 + 4, cat("rank ", rank)), "\n<rect fill=\"url(#", options_.id, "-hatch)\" x=\"", kLeft,
                          "\" width=\"", decimal(x(seconds_) - kLeft, 2), "\" height=\"", kCompute, "\"/>\n");
    // Outlined ones last, so that no neighbour covers their outline.
    for (const bool critical : {false, true})
      for (const Box& box : boxes_[rank])
        if (box.critical == critical) svg += box_svg(box, rank);
    if (options_.calls && !options_.calls->empty()) svg += calls(options_.calls->at(rank));
    return svg + memory(rank) + "</g>\n";
  }

  // Inside layers: when calls run, below what is computed, and over that when it waits for them.
  std::string calls(const std::vector<CallRecord>& calls) const {
    std::vector<Span> running, waiting;
    for (const CallRecord& call : calls) {
      running.push_back({call.start, call.end});
      if (call.waited > 0) waiting.push_back({std::max(call.start, call.end - call.waited), call.end});
    }
    std::string svg;
    const auto rectangle = [&](const Span& span, std::string_view look, double top, double height) {
      const double left = x(span.start);
      svg += cat("<rect ", look, " x=\"", decimal(left, 2), "\" y=\"", top, "\" width=\"", decimal(std::max(x(span.end) - left, 0.4), 2),
                 "\" height=\"", height, "\"/>\n");
    };
    for (const Span& span : merged(std::move(running))) rectangle(span, "class=\"C\"", kCompute + 2, kNetwork);
    for (const Span& span : merged(std::move(waiting))) rectangle(span, cat("fill=\"url(#", options_.id, "-hatch)\""), 0, kCompute);
    return svg;
  }

  // In the order of time, neighbours that no eye tells apart as one.
  std::vector<Span> merged(std::vector<Span> spans) const {
    std::ranges::sort(spans, {}, &Span::start);
    std::vector<Span> result;
    for (const Span& span : spans) {
      if (!result.empty() && span.start <= result.back().end + seconds_ / 4000)
        result.back().end = std::max(result.back().end, span.end);
      else
        result.push_back(span);
    }
    return result;
  }

  std::string box_svg(const Box& box, size_t rank) const {
    const double left = x(box.start), width = std::max(x(box.end) - left, 0.4);
    const double top = box.computes() ? 0 : kCompute + 2, height = box.computes() ? kCompute : kNetwork;
    const std::string edge = box.critical ? (width < 8 ? " c d" : " c") : box.computes() && width > 4 ? " k" : "";
    std::string svg = cat("<rect class=\"", class_of(box, layout_.pipeline), edge, "\" x=\"", decimal(left, 2), "\" y=\"", top,
                          "\" width=\"", decimal(width, 2), "\" height=\"", height, "\"");
    svg += titles_ ? cat("><title>", escaped(tooltip(box, rank)), "</title></rect>") : "/>";
    if (box.computes() && box.microbatch >= 0) {
      const std::string number = cat(box.microbatch);
      if (width >= kDigit * static_cast<double>(number.size()) + kPadding)
        svg += label("n", decimal(left + width / 2, 2), kCompute / 2 + 4, number);
    }
    return svg + "\n";
  }

  std::string tooltip(const Box& box, size_t rank) const {
    const program::Action& action = program_.list(static_cast<int>(rank))[static_cast<size_t>(box.first)];
    std::string what(program::action_name(action.kind));
    if (box.stage >= 0) what += cat(" stage ", box.stage);
    if (box.microbatch >= 0) what += cat(" microbatch ", box.microbatch);
    return cat(what, ": ", time_text(box.end - box.start, options_.in_units), " from ", time_text(box.start, options_.in_units));
  }

  std::string memory(size_t rank) const {
    const double top = kCompute + (network_ ? kNetwork + 2 : 0) + 3;
    const std::vector<program::MemoryArray> columns = columns_of(rank);
    return cat("<g transform=\"translate(0,", top, ")\">", area("a", columns, program::device_total), area("s", columns, states_total),
               label("q r", kLeft - 12, kMemory / 2 + 4, program::bytes_text(peak_bytes(options_.memory.at(rank)))), "</g>\n");
  }

  // What the rank holds in each column of pixels, at the time of it at which that is most. What an action holds counts from the moment
  // the rank comes to it in its list.
  std::vector<program::MemoryArray> columns_of(size_t rank) const {
    const std::vector<program::Action>& actions = program_.list(static_cast<int>(rank));
    const program::MemoryTimeline& timeline = options_.memory.at(rank);
    std::vector<program::MemoryArray> columns(static_cast<size_t>(std::max(1.0, x(seconds_) - kLeft)) + 1);
    const auto column = [&](double time) {
      return static_cast<size_t>(std::clamp(time / seconds_, 0.0, 1.0) * static_cast<double>(columns.size() - 1));
    };
    double now = 0;
    const auto until = [&](double time, const program::MemoryArray& bytes) {
      for (size_t i = column(now); i <= column(std::max(now, time)); ++i)
        if (program::device_total(bytes) >= program::device_total(columns[i])) columns[i] = bytes;
      now = std::max(now, time);
    };
    program::MemoryArray held = timeline.before;
    for (size_t i = 0; i < actions.size(); ++i) {
      if (program::computes(actions[i].kind)) until(spans_[rank][i].start, held);
      until(program::computes(actions[i].kind) ? spans_[rank][i].end : now, timeline.points.at(i).within);
      held = timeline.points[i].after;
    }
    until(seconds_, held);
    return columns;
  }

  std::string area(const char* name, const std::vector<program::MemoryArray>& columns, int64_t (*total)(const program::MemoryArray&)) const {
    std::string path = cat("<path class=\"", name, "\" d=\"M", decimal(kLeft), " ", decimal(kMemory));
    int64_t before = -1;
    for (size_t i = 0; i < columns.size(); ++i) {
      if (total(columns[i]) == before) continue;
      before = total(columns[i]);
      path += cat("H", decimal(kLeft + static_cast<double>(i)), "V",
                  decimal(kMemory * (1 - static_cast<double>(before) / static_cast<double>(memory_scale_)), 2));
    }
    return cat(path, "H", decimal(x(seconds_)), "V", decimal(kMemory), "Z\"/>");
  }

  const program::Program& program_;
  const program::Layout& layout_;
  const Spans& spans_;
  const GanttOptions& options_;
  std::vector<std::vector<Box>> boxes_;
  std::set<BoxKind> present_;
  double seconds_ = 1;
  size_t shown_ = 0;
  bool network_ = false, titles_ = true;
  int64_t memory_scale_ = 1;
  double row_height_ = 0, top_ = 0;
};

}  // namespace

std::string gantt_svg(const program::Program& program, const program::Layout& layout, const Spans& spans,
                      const GanttOptions& options) {
  return Gantt(program, layout, spans, options).text();
}

}  // namespace lockstep::plan
