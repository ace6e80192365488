#include "apps/lockstep/plan_json.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::apps {
namespace {

using plan::Candidate;
using plan::StepEstimate;

OrderedJson candidate_json(const Candidate& candidate) {
  return {{"tp", candidate.tp},
          {"pp", candidate.pp},
          {"cp", candidate.cp},
          {"ep", candidate.ep},
          {"etp", candidate.etp},
          {"dp", candidate.dp},
          {"dp_replicate", candidate.dp_replicate},
          {"virtual_stages", candidate.virtual_stages},
          {"zero", candidate.zero},
          {"micro_batch", candidate.micro_batch},
          {"recompute", config::name_of(candidate.recompute)},
          {"schedule", config::name_of(candidate.schedule)},
          {"sequence_parallel", candidate.sequence_parallel},
          {"offload_optimizer", candidate.offload_optimizer},
          {"devices", plan::devices_of(candidate)}};
}

OrderedJson breakdown_json(const plan::Breakdown& breakdown) {
  OrderedJson json;
  for (const plan::Term& term : plan::terms()) json[std::string(term.name)] = breakdown.*term.seconds;
  return json;
}

OrderedJson step_json(const StepEstimate& estimate) {
  return {{"seconds", estimate.seconds},
          {"low", estimate.low},
          {"high", estimate.high},
          {"widest", estimate.widest},
          {"tokens", estimate.tokens},
          {"tokens_per_second", estimate.tokens_per_second()},
          {"model_flops_causal", estimate.model_flops_causal},
          {"model_flops_noncausal", estimate.model_flops_noncausal},
          {"mfu_causal", estimate.mfu_causal},
          {"mfu_noncausal", estimate.mfu_noncausal},
          {"bubble_share", estimate.bubble_share},
          {"breakdown", breakdown_json(estimate.breakdown)}};
}

OrderedJson stages_json(const StepEstimate& estimate) {
  OrderedJson json = OrderedJson::array();
  for (const plan::StageEstimate& stage : estimate.stages) {
    OrderedJson one = {{"stage", stage.stage}, {"blocks", stage.layers}, {"busy_seconds", stage.busy}};
    for (const auto& [name, member] : plan::memory_parts()) one[std::string(name)] = stage.*member;
    one.update({{"peak", stage.peak}, {"reserved", stage.reserved}});
    json.push_back(one);
  }
  return json;
}

OrderedJson traffic_json(const plan::Traffic& traffic, double seconds) {
  OrderedJson json = {{"synchronisation_bytes", traffic.reduction}, {"axes", OrderedJson::array()}, {"links", OrderedJson::array()}};
  for (const plan::AxisLoad& axis : traffic.axes) {
    OrderedJson on;
    for (size_t i = 0; i < plan::kLinkClasses; ++i) on[std::string(plan::link_name(static_cast<plan::LinkClass>(i)))] = axis.on[i];
    json["axes"].push_back({{"axis", axis.axis}, {"sent", axis.sent}, {"on", on}});
  }
  for (const plan::LinkLoad& link : traffic.links)
    json["links"].push_back({{"link", plan::link_name(link.link)},
                             {"all", link.all},
                             {"busiest", link.busiest},
                             {"where", link.where},
                             {"capacity", link.capacity},
                             {"utilisation", link.capacity > 0 ? link.busiest / (link.capacity * seconds) : 0.0}});
  return json;
}

OrderedJson found_json(const plan::Found& found) {
  return {{"layout", candidate_json(found.candidate)}, {"step", step_json(found.estimate)}, {"memory", found.estimate.most_reserved()}, {"fits", found.estimate.fits},
          {"why", found.why}};
}

OrderedJson search_json(const plan::SearchResult& search) {
  OrderedJson json = {{"candidates", search.candidates}, {"seconds", search.seconds}, {"first_tier_rate", search.first_tier_rate}, {"spare", search.spare}, {"asked_spare", search.asked_spare}};
  for (const auto& [name, list] : {std::pair{"best", &search.best}, {"pareto", &search.pareto}}) {
    json[name] = OrderedJson::array();
    for (const plan::Found& found : *list) json[name].push_back(found_json(found));
  }
  json["rejected"] = OrderedJson::object();
  for (const auto& [reason, count] : search.rejected) json["rejected"][std::string(plan::reject_text(reason))] = count;
  json["misses"] = OrderedJson::array();
  for (const plan::NearMiss& miss : search.misses)
    json["misses"].push_back({{"layout", candidate_json(miss.candidate)}, {"reason", plan::reject_text(miss.reason)}, {"text", miss.text}});
  json["sensitivity"] = OrderedJson::array();
  for (const plan::Sensitivity& one : search.sensitivity)
    json["sensitivity"].push_back({{"constant", one.constant}, {"minus", one.minus}, {"plus", one.plus}, {"order_changes", one.order_changes}});
  return json;
}

OrderedJson cluster_json(const plan::Cluster& cluster) {
  OrderedJson slow = {{"nodes", OrderedJson::object()}, {"nics", OrderedJson::object()}};
  for (const auto& [node, share] : cluster.slow.nodes) slow["nodes"][cat(node)] = share;
  for (const auto& [node, share] : cluster.slow.nics) slow["nics"][cat(node)] = share;
  return {{"text", plan::describe(cluster)},
          {"origin", cluster.origin},
          {"device", cluster.device.name},
          {"device_memory", cluster.device.memory},
          {"nodes", cluster.nodes},
          {"devices_per_node", cluster.devices_per_node},
          {"domain", cluster.domain},
          {"nics_per_node", cluster.nics_per_node},
          {"nic", cluster.network.nic},
          {"nodes_per_leaf", cluster.network.nodes_per_leaf},
          {"oversubscription", cluster.network.oversubscription},
          {"rails", cluster.network.rails},
          {"price", cluster.price},
          {"slow", slow}};
}

OrderedJson stack_json(const plan::Stack& stack) {
  OrderedJson json = {{"name", stack.name}, {"kernels", plan::kernels_name(stack.kernels)}, {"constants", OrderedJson::object()}};
  for (const auto& [name, member] : plan::stack_constants()) {
    const auto origin = stack.origins.find(name);
    json["constants"][name] = {{"value", stack.*member}, {"origin", origin == stack.origins.end() ? "" : origin->second}};
  }
  return json;
}

OrderedJson calibration_json(const plan::Calibration& calibration) {
  OrderedJson json = {{"observations", calibration.observations}, {"median_error", calibration.median_error},
                      {"total_error", calibration.total_error}};
  for (const plan::FittedConstant& one : calibration.constants)
    json["constants"][one.name] = {{"before", one.before}, {"after", one.after},
                                   {"error", std::isfinite(one.error) ? OrderedJson(one.error) : OrderedJson()}};
  return json;
}

OrderedJson run_json(const PlanQuestion& question, const PlanAnswer& answer) {
  OrderedJson json = {{"step_money", plan::step_money(question.cluster, answer.run.devices, answer.estimate.seconds)}};
  if (answer.run.tokens == 0) return json;
  const plan::Money money = plan::money_of(question.cluster, answer.estimate, answer.run);
  json.update({{"tokens", answer.run.tokens}, {"useful", answer.run.useful}, {"steps", money.steps}, {"seconds", 3600 * money.hours},
               {"money", money.run}});
  return json;
}

OrderedJson goodput_json(const PlanAnswer& answer) {
  const plan::Goodput& goodput = *answer.goodput;
  return {{"useful", goodput.useful},
          {"saving", goodput.saving},
          {"restarting", goodput.restarting},
          {"repeating", goodput.repeating},
          {"seconds_between_failures", goodput.between_failures},
          {"seconds_between_saves", goodput.interval},
          {"seconds_blocked_by_a_save", goodput.save.blocked},
          {"failures", answer.failures}};
}

void add_layout(OrderedJson& json, const PlanQuestion& question, const PlanAnswer& answer) {
  json["layout"] = candidate_json(answer.candidate);
  json["layout"].update({{"text", program::describe(*answer.layout)}, {"from", question.layout ? "configuration" : "search"}});
  json["step"] = step_json(answer.estimate);
  json["stages"] = stages_json(answer.estimate);
  json["worst_stage"] = answer.estimate.worst_stage;
  json["traffic"] = traffic_json(answer.estimate.traffic, answer.estimate.seconds);
  json["cost"] = run_json(question, answer);
  const Launch launch = launch_of(question, answer);
  json["launch"] = {{"train", launch.train}, {"slurm", launch.slurm}, {"flags", launch.flags}, {"order", launch.order}};
  if (answer.healthy) json["nothing_slow"] = step_json(*answer.healthy);
  if (answer.goodput) json["goodput"] = goodput_json(answer);
}

}  // namespace

OrderedJson plan_json(const PlanQuestion& question, const PlanAnswer& answer) {
  OrderedJson json = {{"model", arch::describe(question.model)}, {"cluster", cluster_json(question.cluster)}, {"devices", question.devices},
                      {"assumed", question.assumed}, {"fits", answer.fits()}};
  if (answer.layout) add_layout(json, question, answer);
  json["search"] = search_json(answer.search);
  for (const plan::WhatIf& one : answer.what_ifs)
    json["what_ifs"].push_back({{"what", one.what}, {"seconds", one.seconds}, {"fits", one.fits}, {"note", one.note}});
  for (const Opposite& one : answer.opposites) {
    OrderedJson entry = {{"layout", one.said.layout}, {"text", one.said.text}};
    if (one.estimate) {
      entry["step"] = step_json(*one.estimate);
      entry["traffic"] = traffic_json(one.estimate->traffic, one.estimate->seconds);
    }
    json["why_not"].push_back(entry);
  }
  json["stack"] = stack_json(question.stack);
  if (question.calibration) json["calibration"] = calibration_json(*question.calibration);
  return json;
}

}  // namespace lockstep::apps
