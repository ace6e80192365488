#include "lockstep/plan/drawing.h"

#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/boxes.h"
#include "lockstep/program/names.h"
#include "lockstep/program/pending.h"

namespace lockstep::plan {
namespace {

using program::Action;

enum Thread { kCompute, kNetwork, kCopies };
constexpr const char* kThreads[] = {"compute", "network", "copies"};

Thread thread_of(const program::Effects& effects) {
  if (effects.lane == program::Lane::kCopies) return kCopies;
  return effects.lane == program::Lane::kCompute && !effects.collective ? kCompute : kNetwork;
}

class Events {
 public:
  Events(const program::Program& program, const program::Layout& layout, const Spans& spans, bool in_units)
      : program_(program), layout_(layout), spans_(spans), scale_(in_units ? 1e3 : 1e6) {}

  OrderedJson all() {
    for (int rank = 0; rank < static_cast<int>(spans_.size()); ++rank) {
      name("process_name", rank, kCompute, cat("rank ", rank, layout_.mesh.world_size() > 1 ? " " + layout_.mesh.describe(rank) : ""));
      events_.push_back({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", rank}, {"tid", 0}, {"args", {{"sort_index", rank}}}});
      for (const Thread thread : {kCompute, kNetwork, kCopies}) name("thread_name", rank, thread, kThreads[thread]);
      effects_.emplace_back(layout_, program_.buckets, rank);
      for (int i = 0; i < static_cast<int>(spans_[static_cast<size_t>(rank)].size()); ++i) complete({rank, i});
    }
    const Matching matching = match(program_, layout_);
    for (size_t i = 0; i < matching.transfers.size(); ++i) arrow(i, matching.transfers[i]);
    return std::move(events_);
  }

 private:
  const Action& action(const ActionRef& ref) const {
    return program_.list(ref.rank)[static_cast<size_t>(ref.index)];
  }
  const Span& span(const ActionRef& ref) const { return of_action(spans_, ref); }

  void name(const char* what, int rank, Thread thread, const std::string& name) {
    events_.push_back({{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", static_cast<int>(thread)}, {"args", {{"name", name}}}});
  }
  const program::Effects& effects(int rank, const Action& action) { return effects_[static_cast<size_t>(rank)].of(action); }
  void complete(const ActionRef& ref) {
    const Action& done = action(ref);
    const program::Effects& of = effects(ref.rank, done);
    const bool receives = of.lane == program::Lane::kChannel && of.touches.front().how == program::Access::kCreate;
    if (span(ref).seconds() <= 0 || receives) return;
    const int stage = stage_of(done, layout_);
    OrderedJson args = OrderedJson::object();
    if (stage >= 0) args["stage"] = stage;
    if (done.microbatch >= 0) args["microbatch"] = done.microbatch;
    events_.push_back({{"ph", "X"},
                       {"name", program::action_text(done, program_.buckets, layout_.num_layers())},
                       {"cat", program::action_name(done.kind)},
                       {"pid", ref.rank},
                       {"tid", static_cast<int>(thread_of(of))},
                       {"ts", span(ref).start * scale_},
                       {"dur", span(ref).seconds() * scale_},
                       {"args", args}});
  }
  // An arrow binds to the event that encloses its end: from what was computed last before the SEND to what uses it first.
  void arrow(size_t id, const Transfer& transfer) {
    const int source = computed(transfer.send), target = user(transfer.recv);
    if (source < 0 || target < 0) return;
    const Span& from = span({transfer.send.rank, source});
    const Span& to = span({transfer.recv.rank, target});
    const auto end = [&](const char* phase, int rank, double time) {
      OrderedJson event = {{"ph", phase}, {"name", "transfer"}, {"cat", "transfer"}, {"id", id}, {"pid", rank}, {"tid", 0}, {"ts", time * scale_}};
      if (phase[0] == 'f') event["bp"] = "e";
      events_.push_back(std::move(event));
    };
    end("s", transfer.send.rank, from.start + from.seconds() * 0.999);
    end("f", transfer.recv.rank, to.start + to.seconds() * 0.001);
  }
  int computed(const ActionRef& ref) const {
    int i = ref.index;
    while (i >= 0 && !program::computes(action({ref.rank, i}).kind)) --i;
    return i;
  }
  // What takes what the RECV brings.
  int user(const ActionRef& ref) {
    program::Pending<bool> coming;
    coming.start(effects(ref.rank, action(ref)), action(ref), true);
    const int count = static_cast<int>(program_.list(ref.rank).size());
    for (int i = ref.index + 1; i < count; ++i) {
      const Action& next = action({ref.rank, i});
      if (program::computes(next.kind) && !coming.of(effects(ref.rank, next), next).empty()) return i;
    }
    return -1;
  }

  const program::Program& program_;
  const program::Layout& layout_;
  const Spans& spans_;
  const double scale_;
  std::vector<program::EffectTable> effects_;  // by rank
  OrderedJson events_ = OrderedJson::array();
};

}  // namespace

std::string chrome_trace(const program::Program& program, const program::Layout& layout, const Spans& spans, bool in_units) {
  const OrderedJson json = {{"displayTimeUnit", "ms"}, {"traceEvents", Events(program, layout, spans, in_units).all()}};
  return json.dump() + "\n";
}

}  // namespace lockstep::plan
