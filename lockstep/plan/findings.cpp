#include "lockstep/plan/findings.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/plan_text.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {
namespace {

constexpr double kRoomy = 0.10;
constexpr double kBusy = 0.5;        // of a step: a link that is worth a warning
constexpr size_t kMostNamed = 4, kMostNext = 2;
constexpr size_t kLine = 130;        // columns of a terminal beside the name of a finding

double above(const StepEstimate& estimate, const StepEstimate& other) { return estimate.seconds / other.seconds - 1; }
double half_band(const StepEstimate& estimate) { return (estimate.high - estimate.low) / 2 / estimate.seconds; }

class Findings {
 public:
  explicit Findings(const PlanPage& page) : page_(page), estimate_(page.estimate) {}

  std::vector<Finding> all() {
    layout();
    memory();
    step();
    limit();
    if (estimate_.fits) others();
    sureness();
    network();
    choices();
    return std::move(found_);
  }

 private:
  void add(std::string_view about, std::string text, bool warns = false) { found_.push_back({about, std::move(text), warns}); }

  const Found* best() const { return page_.search.best.empty() ? nullptr : &page_.search.best[0]; }

  void layout() {
    const int used = devices_of(page_.candidate), there = page_.cluster.devices();
    std::string text = cat(describe(page_.candidate), "; ", used == there ? cat("all ", count_text(used)) : cat(count_text(used), " of ", count_text(there)),
                           " devices. ");
    const Found* first = best();
    const SearchResult& search = page_.search;
    const std::string leave = search.spare > 0 ? cat(" that leave ", tenths_text(search.spare), " of the memory") : "";
    if (!page_.given) text += cat("The fastest of ", count_text(search.candidates), " layouts", leave, ".");
    if (page_.given && !first) text += "As the configuration says; no other layout was found to fit.";
    if (page_.given && first) {
      const double share = above(estimate_, first->estimate);
      const bool same = first->candidate == page_.candidate || std::abs(share) < kSameStep;
      text += same ? "As the configuration says, and no layout that was found is faster."
                   : cat("As the configuration says. ", share > 0 ? "The fastest that was found takes " : "The best that was found takes ",
                         tenths_text(std::abs(first->estimate.seconds / estimate_.seconds - 1)), share > 0 ? " less: " : " more: ",
                         describe(first->candidate), ".");
    }
    add("layout", text);
  }

  void memory() {
    const double room = page_.cluster.device.memory, need = estimate_.most_reserved();
    if (estimate_.stages.empty() || room <= 0) return;
    std::string text = cat(estimate_.fits ? "It fits: stage " : "It does not fit: stage ", estimate_.worst_stage, " needs ", format_bytes(need), " of ",
                           format_bytes(room));
    const bool tight = estimate_.fits && need > (1 - kSpareMemory) * room;
    if (need <= room) text += cat("; ", format_bytes(room - need), " (", tenths_text(1 - need / room), ") are left.");
    if (need > room) text += cat("; ", format_bytes(need - room), " are missing.");
    if (const std::string none = no_spare_text(page_.search); !page_.given && !none.empty()) text += " " + none;
    if (tight) text += cat(" That is little beside what a prediction of memory errs by.", roomier(room));
    add("memory", text, tight || !estimate_.fits);
  }

  // The fastest that leaves a tenth of the device, on as many devices.
  std::string roomier(double room) const {
    const Found* found = nullptr;
    for (const std::vector<Found>* list : {&page_.search.best, &page_.search.pareto})
      for (const Found& one : *list) {
        const bool roomy = one.estimate.most_reserved() <= (1 - kRoomy) * room && devices_of(one.candidate) == devices_of(page_.candidate);
        if (roomy && (!found || one.estimate.seconds < found->estimate.seconds)) found = &one;
      }
    if (!found) return "";
    return cat(" ", describe(found->candidate), " leaves ", tenths_text(1 - found->estimate.most_reserved() / room), " and is ",
               tenths_text(above(found->estimate, estimate_)), " slower.");
  }

  void step() {
    std::string text = cat(seconds_text(estimate_.seconds), "; in 9 of 10 cases ", band_text(estimate_), ". ", format_count(estimate_.tokens_per_second()),
                           " tokens a second, MFU ", tenths_text(estimate_.mfu_causal), ".");
    MoneyOptions run = page_.run;
    if (run.devices == 0) run.devices = devices_of(page_.candidate);
    const Money money = money_of(page_.cluster, estimate_, run);
    if (page_.cluster.price > 0) text += cat(" 1e9 tokens cost ", money_text(money.token * 1e9), ".");
    if (run.tokens > 0)
      text += cat(" ", format_count(run.tokens), " tokens take ", format_duration(3600 * money.hours), money.run > 0 ? cat(" and ", money_text(money.run)) : "",
                  run.useful < 1 ? ", failures and saving counted." : ".");
    add("step", text);
  }

  void limit() {
    std::vector<const Term*> sorted;
    std::array<double, 3> kinds{};
    for (const Term& term : terms()) {
      sorted.push_back(&term);
      kinds[static_cast<size_t>(term.kind)] += estimate_.breakdown.*term.seconds / estimate_.seconds;
    }
    const auto share = [&](const Term* term) { return estimate_.breakdown.*term->seconds / estimate_.seconds; };
    std::ranges::stable_sort(sorted, [&](const Term* a, const Term* b) { return share(a) > share(b); });
    std::vector<std::string> named;
    for (size_t i = 0; i < kMostNamed && share(sorted[i]) >= kSameStep; ++i) named.push_back(cat(sorted[i]->label, " ", tenths_text(share(sorted[i]))));
    std::string text = cat(join(named, ", "), ". All that computes ", tenths_text(kinds[0]), ", all that waits for communication ", tenths_text(kinds[1]),
                           ", bubble and host ", tenths_text(kinds[2]), ".");
    const auto loss = std::ranges::find_if(sorted, [](const Term* term) { return !term->way_out.empty(); });
    if (loss != sorted.end() && share(*loss) >= kSameStep) text += cat(" Less ", (*loss)->label, ": ", (*loss)->way_out, ".");
    add("limits", text);
  }

  void others() {
    std::vector<std::string> named;
    for (const Found& one : page_.search.best) {
      const double share = above(one.estimate, estimate_);
      if (one.candidate == page_.candidate || share < 0 || named.size() == kMostNext) continue;
      named.push_back(cat(describe(one.candidate), " (", share < kSameStep ? "as fast" : cat(tenths_text(share), " slower"), ")"));
    }
    if (named.empty()) return;
    const Found& second = page_.search.best[std::min<size_t>(1, page_.search.best.size() - 1)];
    std::string text = cat(join(named, "; "), ".");
    if (above(second.estimate, estimate_) < half_band(estimate_) / 2)
      text += " The model does not tell such differences apart for sure: time some steps of the first ones before a long run.";
    add("next best", text);
  }

  void sureness() {
    const std::vector<Sensitivity>& all = page_.search.sensitivity;
    std::string text = cat("The band is ", tenths_text(half_band(estimate_)), " to either side", estimate_.widest.empty() ? "" : cat("; least sure: ", estimate_.widest),
                           ".");
    std::vector<std::string> changes;
    for (const Sensitivity& one : all)
      if (one.order_changes && std::max(std::abs(one.minus), std::abs(one.plus)) >= kSameStep) changes.push_back(one.constant);
    if (!all.empty())
      text += changes.empty() ? cat(" None of ", all.size(), " constants changes which layout is best when it is 10 % off.")
                              : cat(" Another layout is best when one of these is 10 % off: ", named_text(changes), ".");
    add("how sure", text, !changes.empty());
  }

  static std::string named_text(std::vector<std::string> names) {
    const size_t all = names.size();
    names.resize(std::min(all, kMostNamed));
    return cat(join(names, ", "), all > names.size() ? cat(" and ", all - names.size(), " more") : "");
  }

  void network() {
    const LinkLoad* busiest = nullptr;
    const auto share = [&](const LinkLoad& link) { return link.capacity > 0 ? link.busiest / (link.capacity * estimate_.seconds) : 0; };
    for (const LinkLoad& link : estimate_.traffic.links)
      if (!busiest || share(link) > share(*busiest)) busiest = &link;
    if (!busiest) return;
    std::string text = cat("Busiest of its links: ", link_name(busiest->link), ", ", tenths_text(share(*busiest)), " of the step. Of the step, ",
                           tenths_text(waits()), " waits for communication.");
    for (const WhatIf& one : page_.what_ifs)
      if (one.what.starts_with("NICs of ") && !one.what.starts_with("NICs of node"))
        text += cat(" With ", one.what, " it takes ", seconds_text(one.seconds, estimate_.seconds), " (", change_text(one.seconds / estimate_.seconds - 1),
                    ").");
    add("network", text, share(*busiest) > kBusy);
  }

  double waits() const {
    double sum = 0;
    for (const Term& term : terms())
      if (term.kind == Term::Kind::kWaits) sum += estimate_.breakdown.*term.seconds;
    return sum / estimate_.seconds;
  }

  // What one choice costs when it is another (other_choices.h); and what would be faster if it did fit.
  void choices() {
    std::vector<std::string> slower, small;
    for (const WhatIf& one : page_.what_ifs) {
      if (!one.choice) continue;
      const double share = one.seconds / estimate_.seconds - 1;
      if (one.fits && share > 0) slower.push_back(cat(one.what, " (", change_text(share), ")"));
      if (!one.fits && share < 0) small.push_back(cat(one.what, " (", change_text(share), ")"));
    }
    std::string text;
    if (!slower.empty()) text += cat("Slower: ", join(slower, "; "), ".");
    if (!small.empty()) text += cat(text.empty() ? "" : " ", "Faster, but does not fit: ", join(small, "; "), ".");
    if (!text.empty()) add("otherwise", text);
  }

  const PlanPage& page_;
  const StepEstimate& estimate_;
  std::vector<Finding> found_{};
};

}  // namespace

std::vector<Finding> findings(const PlanPage& page) {
  if (!(page.estimate.seconds > 0)) return {};
  return Findings(page).all();
}

std::string findings_text(const PlanPage& page) {
  std::vector<program::Row> rows;
  for (const Finding& one : findings(page)) {
    std::string name(one.about), line(one.warns ? "!" : "");
    for (const std::string& word : split(one.text, ' ')) {
      if (line.size() + 1 + word.size() > kLine) {
        rows.push_back({name, line});
        name = line = "";
      }
      line += cat(line.empty() ? "" : " ", word);
    }
    rows.push_back({name, line});
  }
  return program::table(rows, 2, 0);
}

}  // namespace lockstep::plan
