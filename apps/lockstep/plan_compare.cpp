#include "apps/lockstep/plan_compare.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/plan_text.h"
#include "lockstep/plan/what_if.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::apps {
namespace {

using program::Row;

constexpr double kTokens = 1e9;   // that money is told for

std::string letter(size_t index) { return std::string(1, static_cast<char>('A' + index)); }

// Of the step, the busiest link of the class; "-" where the cluster has none.
std::string busy(const PlanAnswer& answer, plan::LinkClass link) {
  const auto& links = answer.estimate.traffic.links;
  const auto found = std::ranges::find(links, link, &plan::LinkLoad::link);
  if (found == links.end() || found->capacity <= 0) return "-";
  return plan::tenths_text(found->busiest / (found->capacity * answer.estimate.seconds));
}

std::string price_text(const plan::Cluster& cluster) {
  return cat(plan::describe(cluster), cluster.price > 0 ? cat(", ", plan::money_text(cluster.price), " for a device and hour") : "");
}

plan::Money money_of(const OnCluster& one) { return plan::money_of(one.question.cluster, one.answer.estimate, one.answer.run); }
double money_of_tokens(const OnCluster& one) { return kTokens * money_of(one).token; }

// What is told of money and of the whole run, where somebody asks about it.
struct Told {
  bool priced = false;
  double tokens = 0;
  size_t columns() const { return (priced ? 1U : 0U) + (tokens > 0 ? 1U : 0U) + (priced && tokens > 0 ? 1U : 0U); }
};

Row heads_of(const Told& told) {
  Row heads = {"", "step", "tokens/s", "MFU", "waits", "NICs", "leaf up-links"};
  if (told.priced) heads.emplace_back("1e9 tokens");
  if (told.tokens > 0) heads.push_back(cat(format_count(told.tokens), " tokens"));
  if (told.tokens > 0 && told.priced) heads.emplace_back("cost");
  heads.emplace_back("layout");
  return heads;
}

Row row_of(const OnCluster& one, size_t index, const Told& told, double scale) {
  Row row = {letter(index)};
  if (!one.answer.fits()) return row.emplace_back("does not fit"), row;
  const plan::StepEstimate& estimate = one.answer.estimate;
  row.push_back(plan::seconds_text(estimate.seconds, scale));
  row.push_back(format_count(estimate.tokens_per_second()));
  row.push_back(plan::tenths_text(estimate.mfu_causal));
  double waits = 0;
  for (const plan::Term& term : plan::terms())
    if (term.kind == plan::Term::Kind::kWaits) waits += estimate.breakdown.*term.seconds;
  row.push_back(plan::tenths_text(waits / estimate.seconds));
  row.push_back(busy(one.answer, plan::LinkClass::kNic));
  row.push_back(busy(one.answer, plan::LinkClass::kLeafUp));
  const auto money_text = [&](double money) { return one.question.cluster.price > 0 ? plan::money_text(money) : "-"; };
  if (told.priced) row.push_back(money_text(money_of_tokens(one)));
  if (told.tokens > 0) row.push_back(format_duration(3600 * money_of(one).hours));
  if (told.tokens > 0 && told.priced) row.push_back(money_text(money_of(one).run));
  row.push_back(plan::describe(one.answer.candidate));
  return row;
}

std::string best_text(const std::vector<OnCluster>& clusters, bool priced) {
  std::string text;
  const auto least = [&](const char* word, const auto& value) {
    size_t best = clusters.size();
    for (size_t i = 0; i < clusters.size(); ++i)
      if (clusters[i].answer.fits() && value(clusters[i]) > 0 && (best == clusters.size() || value(clusters[i]) < value(clusters[best]))) best = i;
    if (best < clusters.size()) text += cat(word, ": ", letter(best), "\n");
  };
  least("fastest", [](const OnCluster& one) { return one.answer.estimate.seconds / one.answer.estimate.tokens; });
  if (priced) least("cheapest", money_of_tokens);
  return text;
}

}  // namespace

std::string compare_page(const std::vector<OnCluster>& clusters) {
  std::vector<Row> names = {{"model", arch::describe(clusters[0].question.model)}};
  for (size_t i = 0; i < clusters.size(); ++i) names.push_back({letter(i), price_text(clusters[i].question.cluster)});
  for (size_t i = 0; i < clusters[0].question.assumed.size(); ++i) names.push_back({i == 0 ? "assumed" : "", clusters[0].question.assumed[i]});
  const Told told{.priced = std::ranges::any_of(clusters, [](const OnCluster& one) { return one.question.cluster.price > 0; }),
                  .tokens = clusters[0].question.tokens};
  std::vector<Row> rows = {heads_of(told)};
  std::string apart;
  double scale = 0;  // of the first that fits
  for (const OnCluster& one : clusters)
    if (one.answer.fits() && scale == 0) scale = one.answer.estimate.seconds;
  for (size_t i = 0; i < clusters.size(); ++i) {
    rows.push_back(row_of(clusters[i], i, told, scale));
    if (i == 0 || !clusters[0].answer.fits() || !clusters[i].answer.fits()) continue;
    const plan::StepEstimate &first = clusters[0].answer.estimate, &here = clusters[i].answer.estimate;
    const double change = here.seconds / first.seconds - 1;
    const std::string cause = plan::cause_of(first, here);
    const std::string much = std::abs(change) < plan::kSameStep ? "the same" : cat(plan::tenths_text(std::abs(change)), change < 0 ? " less" : " more");
    apart += cat(letter(i), " beside A: the step takes ", much, cause.empty() ? "" : cat("; ", cause), "\n");
  }
  std::string text = cat(program::table(names, 2, 0), "\n", program::table(rows, 1, 6 + told.columns()), apart, best_text(clusters, told.priced));
  for (size_t i = 0; i < clusters.size(); ++i) {
    const std::string none = clusters[i].question.layout ? "" : plan::no_spare_text(clusters[i].answer.search);
    if (clusters[i].answer.fits() && !none.empty()) text += cat("\n", letter(i), ": ", none, "\n");
    if (!clusters[i].answer.fits())
      text += cat("\ndoes not fit: ", letter(i), ", none of ", plan::count_text(clusters[i].answer.search.candidates), " layouts is legal and fits\n");
  }
  return text;
}

}  // namespace lockstep::apps
