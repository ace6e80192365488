#include "lockstep/plan/search/candidate.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/fields.h"

namespace lockstep::plan {
namespace {

constexpr const char* kRecompute = "recompute";
constexpr const char* kSchedule = "schedule";
constexpr const char* kSwitches[] = {"sequence_parallel", "offload_optimizer"};
constexpr int kMostZero = 3;

[[noreturn]] void reject(const std::string& what, const std::string& way_out) {
  throw ConfigError({.code = "LS1145", .what = what, .way_out = way_out});
}

std::vector<std::string> field_names() {
  std::vector<std::string> names;
  for (const WholeField& field : whole_fields()) names.emplace_back(field.name);
  names.emplace_back(kRecompute);
  names.emplace_back(kSchedule);
  names.insert(names.end(), std::begin(kSwitches), std::end(kSwitches));
  return names;
}

std::vector<std::string> schedule_words() {
  std::vector<std::string> words = config::choices_of(config::ScheduleKind{});
  std::erase(words, "file");  // a grid is of one number of ranks and microbatches
  return words;
}

std::optional<bool> switch_of(std::string_view text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return std::nullopt;
}

void check_words(const std::string& name, const std::string& value, const std::vector<std::string>& words) {
  if (std::ranges::count(words, value) == 0) reject(cat(name, " = ", value, " is none of ", join(words, ", ")), cat("write ", name, "=", words.front()));
}

void check_value(const std::string& name, const std::string& value) {
  if (name == kRecompute) return check_words(name, value, config::choices_of(config::Recompute{}));
  if (name == kSchedule) return check_words(name, value, schedule_words());
  if (std::ranges::count(kSwitches, name) > 0) {
    if (!switch_of(value)) reject(cat(name, " = ", value, ": true or false is needed"), cat("write ", name, "=true"));
    return;
  }
  const std::optional<int> number = parse_number<int>(value);
  if (name == "zero" && number && (*number < 0 || *number > kMostZero)) reject(cat("zero = ", value, ": the stages are 0 to ", kMostZero), "write zero=1");
  if (!number || (name != "zero" && *number < 1)) reject(cat(name, " = ", value, ": a whole number of 1 or more is needed"), cat("write ", name, "=2"));
}

std::string trimmed(std::string text) {
  const auto space = [](char c) { return c == ' '; };
  text.erase(text.begin(), std::ranges::find_if_not(text, space));
  while (!text.empty() && space(text.back())) text.pop_back();
  return text;
}

const std::string* value_of(const Fixed& fixed, std::string_view name) {
  const auto found = fixed.values.find(std::string(name));
  return found == fixed.values.end() ? nullptr : &found->second;
}

// The place of a word among those of an enum.
template <typename Enum>
std::optional<Enum> fixed_word(const Fixed& fixed, std::string_view name) {
  const std::string* value = value_of(fixed, name);
  if (value == nullptr) return std::nullopt;
  const config::Words words = config::choices_of(Enum{});
  return static_cast<Enum>(std::ranges::find(words, *value) - words.begin());
}

// Keys that would be of nothing: layout_problems() refuses them.
void leave_out_what_is_of_nothing(config::RunConfig& config, const Candidate& candidate) {
  config::ParallelSection& parallel = config.parallel;
  if (candidate.zero == 0 || (candidate.dp_shard() == 1 && candidate.cp == 1)) parallel.reduce_precision = config::Precision::kFp32;
  if (candidate.pp == 1) parallel.post_validation = config::PostValidation::kAuto;
  if (!candidate.offload_optimizer) {
    config.memory.host_limit = {};
    config.memory.disk_path.clear();
  }
  if (candidate.ep > 1 || candidate.etp > 1) return;
  parallel.dispatcher = config::Dispatcher::kAllToAll;
  parallel.ranks_per_node = 0;
  parallel.overlap_experts = false;
  config.moe.imbalance_limit.reset();
  config.moe.static_buffers = false;
}

}  // namespace

const std::vector<WholeField>& whole_fields() {
  static const std::vector<WholeField> fields = {{"tp", &Candidate::tp},
                                                 {"pp", &Candidate::pp},
                                                 {"cp", &Candidate::cp},
                                                 {"ep", &Candidate::ep},
                                                 {"etp", &Candidate::etp},
                                                 {"dp", &Candidate::dp},
                                                 {"dp_replicate", &Candidate::dp_replicate},
                                                 {"virtual_stages", &Candidate::virtual_stages},
                                                 {"zero", &Candidate::zero},
                                                 {"micro_batch", &Candidate::micro_batch}};
  return fields;
}

std::vector<int> divisors(int64_t number) {
  std::vector<int> found;
  const auto add = [&](int64_t divisor) {
    if (divisor <= std::numeric_limits<int>::max()) found.push_back(static_cast<int>(divisor));
  };
  for (int64_t i = 1; i <= number / i; ++i) {
    if (number % i != 0) continue;
    add(i);
    if (number / i != i) add(number / i);
  }
  std::ranges::sort(found);
  return found;
}

std::optional<int> fixed_whole(const Fixed& fixed, std::string_view name) {
  const std::string* value = value_of(fixed, name);
  return value == nullptr ? std::nullopt : parse_number<int>(*value);
}

std::optional<bool> fixed_switch(const Fixed& fixed, std::string_view name) {
  const std::string* value = value_of(fixed, name);
  return value == nullptr ? std::nullopt : switch_of(*value);
}

std::optional<config::Recompute> fixed_recompute(const Fixed& fixed) { return fixed_word<config::Recompute>(fixed, kRecompute); }
std::optional<config::ScheduleKind> fixed_schedule(const Fixed& fixed) { return fixed_word<config::ScheduleKind>(fixed, kSchedule); }

std::string describe(const Candidate& candidate) {
  std::vector<std::string> parts = {cat("tp ", candidate.tp)};
  if (candidate.tp > 1 && !candidate.sequence_parallel) parts.back() += " (whole rows)";
  const std::string schedule = config::name_of(candidate.schedule);
  const std::string stages = candidate.virtual_stages > 1 ? cat(", ", candidate.virtual_stages, " virtual stages") : "";
  parts.push_back(cat("pp ", candidate.pp, candidate.pp > 1 ? cat(" (", schedule, stages, ")") : ""));
  if (candidate.cp > 1) parts.push_back(cat("cp ", candidate.cp));
  if (candidate.ep > 1) parts.push_back(cat("ep ", candidate.ep));
  if (candidate.etp > 1) parts.push_back(cat("etp ", candidate.etp));
  parts.push_back(cat("dp ", candidate.dp));
  const bool groups = candidate.zero > 0 && candidate.dp_replicate > 1;
  parts.push_back(cat("zero ", candidate.zero, groups ? cat(" (", candidate.dp_replicate, " groups of ", candidate.dp_shard(), ")") : ""));
  parts.push_back(cat("micro-batch ", candidate.micro_batch));
  parts.push_back(cat("recompute ", config::name_of(candidate.recompute)));
  if (candidate.offload_optimizer) parts.emplace_back("optimizer on the host");
  return join(parts, ", ");
}

Fixed parse_fixed(std::string_view text) {
  Fixed fixed;
  if (trimmed(std::string(text)).empty()) return fixed;
  const std::vector<std::string> names = field_names();
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string name = trimmed(part.substr(0, equals)), value = equals == std::string::npos ? "" : trimmed(part.substr(equals + 1));
    if (std::ranges::count(names, name) == 0) {
      const std::string near = nearest(name, names);
      reject(cat("'", name, "' is no field of a layout"), near.empty() ? cat("there are ", join(names, ", ")) : cat("did you mean '", near, "'?"));
    }
    if (value.empty()) reject(cat(name, " has no value"), cat("write ", name, "=..."));
    check_value(name, value);
    if (!fixed.values.emplace(name, value).second) reject(cat(name, " is fixed twice"), "say it once");
  }
  return fixed;
}

Candidate with_fixed(Candidate candidate, const Fixed& fixed) {
  for (const WholeField& field : whole_fields()) candidate.*field.value = fixed_whole(fixed, field.name).value_or(candidate.*field.value);
  candidate.recompute = fixed_recompute(fixed).value_or(candidate.recompute);
  candidate.schedule = fixed_schedule(fixed).value_or(candidate.schedule);
  candidate.sequence_parallel = fixed_switch(fixed, "sequence_parallel").value_or(candidate.sequence_parallel);
  candidate.offload_optimizer = fixed_switch(fixed, "offload_optimizer").value_or(candidate.offload_optimizer);
  return candidate;
}

config::RunConfig with_candidate(config::RunConfig config, const Candidate& candidate) {
  config::ParallelSection& parallel = config.parallel;
  parallel.tp = candidate.tp;
  parallel.pp = candidate.pp;
  parallel.cp = candidate.cp;
  parallel.ep = candidate.ep;
  parallel.etp = candidate.etp;
  parallel.dp = candidate.dp;
  parallel.dp_replicate = candidate.zero > 0 && candidate.dp_replicate > 1 ? candidate.dp_replicate : 0;
  parallel.dp_shard = 0;
  parallel.fsdp = false;
  parallel.zero = candidate.zero;
  parallel.schedule = {.kind = candidate.schedule};
  parallel.virtual_stages = candidate.virtual_stages;
  parallel.layers_per_stage = {};
  parallel.sequence_parallel = candidate.sequence_parallel;
  config.train.micro_batch = candidate.micro_batch;
  config.memory.recompute.list = {candidate.recompute};
  config.memory.offload.list.clear();
  if (candidate.offload_optimizer) config.memory.offload.list.push_back(config::Offloaded::kOptimizer);
  leave_out_what_is_of_nothing(config, candidate);
  return config;
}

std::optional<double> rows_limit(const config::RunConfig& config, double imbalance) {
  const config::ParallelSection& parallel = config.parallel;
  const bool bounded = config.moe.imbalance_limit || config.moe.capacity_factor || config.moe.static_buffers;
  const bool kept_for_weights = parallel.pp > 1 && config::zero_stage(config) == 3 && weights_apart(parallel.schedule.kind);
  if (parallel.ep * parallel.etp <= 1 || bounded || parallel.overlap_experts || kept_for_weights) return std::nullopt;
  return std::max(1.0, imbalance);
}

}  // namespace lockstep::plan
