#include "apps/lockstep/plan_question.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "apps/lockstep/plan_sources.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/units.h"
#include "lockstep/config/check.h"
#include "lockstep/config/fields.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/program/passes/job.h"

namespace lockstep::apps {
namespace {

using config::LoadedConfig;
using plan::Cluster;
using plan::Generation;

constexpr const char* kAssumed = "lockstep plan: nobody set it";
constexpr int64_t kSequence = 4096;

// What the evidence verbs and a plan are asked with.
struct Clash {
  const char* flag;
  const char* other;
  const char* why;
  const char* way_out;
};
constexpr std::array kClashes = {
    Clash{"json", "table", "the object has all layouts", "leave --table out"},
    Clash{"calibrate", "stack", "both say the constants of the machine", "leave one of the two out"},
    Clash{"evidence", "json", "errors are told as tables", "--runs FILE --json has the predictions of all runs"},
};

// Of these flags each is about one plan.
constexpr std::array kOfAPlan = {"cluster",   "table", "html",   "fill",    "why-not", "fixed",     "spare",  "order",
                                 "fp8",       "imbalance", "slow", "tokens", "what-if", "stack",   "calibrate", "machine"};

bool written(const CommandLine& command_line, const std::string& flag) {
  return flag == "json" ? command_line.json : command_line.has(flag);
}

[[noreturn]] void contradict(const std::string& what, const std::string& way_out) { reject("LS1150", what, way_out); }

void check_evidence(const CommandLine& command_line) {
  for (const char* about : {"evidence", "runs"}) {
    if (!command_line.has(about)) continue;
    for (const char* flag : kOfAPlan)
      if (command_line.has(flag))
        contradict(cat("--", about, " reads model, layout and cluster of every run, and --", flag, " is of one plan"), cat("leave --", flag, " out"));
    if (!command_line.overrides.empty() || !command_line.config_files().empty() || command_line.ranks)
      contradict(cat("--", about, " reads model, layout and cluster of every run, and this names a configuration or ranks"), "leave them out");
  }
}

// The batch of GPT-3's models by their size (Brown et al. 2020, table 2.1), in tokens and as a power of two.
int64_t usual_batch(const arch::ModelConfig& model) {
  const auto parameters = static_cast<double>(arch::num_parameters(model));
  for (const auto& [below, tokens] : {std::pair{1e9, 1 << 19}, {5e9, 1 << 20}, {1e11, 1 << 21}})
    if (parameters < below) return tokens;
  return 1 << 22;
}

// At least `wanted` sequences that the odd part of the number of devices divides, so that data-parallel degrees can divide it.
int64_t batch_for(int64_t wanted, int devices) {
  int64_t batch = devices;
  while (batch % 2 == 0) batch /= 2;
  while (batch < wanted) batch *= 2;
  return batch;
}

class Assumptions {
 public:
  explicit Assumptions(PlanQuestion& question) : question_(question) {}

  void device() {
    const bool cpu = question_.cluster.device.generation == Generation::kCpu;
    const auto fitting = cpu ? config::Device::kCpu : config::Device::kCuda;
    if (question_.loaded.config.train.device == fitting) return;
    const bool given = is_given(question_.loaded, "train.device");
    const std::string before = given ? cat(", and not as ", question_.loaded.origin["train.device"], " says") : "";
    note("train.device", config::name_of(fitting), cat(": the cluster has ", cpu ? "no GPUs" : "GPUs", before));
  }
  void precision() {
    if (!is_given(question_.loaded, "train.precision")) note("train.precision", "bf16");
  }
  void sequence(const arch::ModelConfig& model) {
    if (!is_given(question_.loaded, "train.seq_len")) note("train.seq_len", cat(std::min<int64_t>(kSequence, model.max_seq_len)));
  }
  void batch(const arch::ModelConfig& model) {
    if (is_given(question_.loaded, "train.global_batch")) return;
    const int64_t wanted = std::max<int64_t>(1, usual_batch(model) / question_.loaded.config.train.seq_len);
    note("train.global_batch", cat(batch_for(wanted, question_.devices)), cat(": GPT-3's batch for a model of this size"));
  }
  // Of a given layout, whose memory is estimated with this limit.
  void rows_of_experts() {
    const auto limit = plan::rows_limit(question_.loaded.config, question_.options.imbalance);
    if (!question_.layout || !limit) return;
    note("moe.imbalance_limit", number_text(*limit), ": without it `lockstep train` has room for all rows on one rank");
    question_.layout->moe.imbalance_limit = limit;
  }

 private:
  void note(const char* key, const std::string& value, const std::string& why = "") {
    const config::Field* field = config::find_field(key);
    const auto complaint = field->assign(question_.loaded.config, config::parse_value(*field, value));
    if (complaint) reject("LS1150", complaint->what, cat("write --", key, "=..."));
    question_.loaded.origin[key] = kAssumed;
    question_.assumed.push_back(cat(key, " = ", field->print(question_.loaded.config), why));
  }

  PlanQuestion& question_;
};

// Sizes of the model with its tokenizer, and the batch, where the layout itself is to be found: as one rank has them.
void settle(PlanQuestion& question) {
  LoadedConfig alone = question.loaded;
  const bool given = is_given(alone, "train.global_batch");
  if (given) {  // one sequence: what one rank cannot take is no question yet
    alone.config.train.micro_batch = alone.config.train.global_batch = 1;
    alone.origin["train.micro_batch"] = kAssumed;
  }
  question.model = program::layout_of(alone, 1).model;
  for (const char* key : {"train.seq_len", "train.global_batch"})
    if (!is_given(question.loaded, key)) question.loaded.origin[key] = alone.origin[key];
  question.loaded.config.train.seq_len = alone.config.train.seq_len;
  if (!given) question.loaded.config.train.global_batch = alone.config.train.global_batch;
}

int devices_wanted(const CommandLine& command_line, const PlanQuestion& question) {
  if (command_line.ranks) return *command_line.ranks;
  return is_given(question.loaded, "parallel.dp") ? config::ranks_wanted(question.loaded.config) : question.cluster.devices();
}

plan::EstimateOptions options_of(const CommandLine& command_line, const PlanQuestion& question) {
  plan::EstimateOptions options;
  if (const std::string order = command_line.value("order"); command_line.has("order")) {
    if (order != "dp-pp" && order != "pp-dp")
      reject("LS1005", cat("--order ", order, ": the order of the data and pipeline axes is needed"),
             "write dp-pp (ranks of one stage side by side) or pp-dp (stages of one pipeline side by side)");
    options.order = order == "pp-dp" ? plan::Order::kPipelined : plan::Order::kUsual;
  }
  if (command_line.has("fp8")) {
    if (question.cluster.device.flops_fp8 <= 0)
      reject("LS1156", cat("--fp8: ", question.cluster.device.name, " has no FP8 products"), "h100, h200, b200 and mi300x have");
    options.linears = plan::Linears::kFp8;
  }
  if (command_line.has("imbalance")) {
    options.imbalance = command_line.number("imbalance", 1);
    if (!(options.imbalance >= 1))
      reject("LS1005", cat("--imbalance ", command_line.value("imbalance"), ": the busiest rank over the mean, 1 or more, is needed"));
    if (!question.model.has_experts())
      reject("LS1156", "--imbalance is of experts, and the model has none", "leave --imbalance out");
  }
  options.spans = command_line.has("html");
  return options;
}

double spare_of(const CommandLine& command_line) {
  const double spare = command_line.number("spare", plan::kSpareMemory);
  if (!(spare >= 0 && spare < 1)) reject("LS1005", cat("--spare ", command_line.value("spare"), ": a share from 0 and below 1 is needed"), "write 0.1");
  return spare;
}

double tokens_of(const CommandLine& command_line) {
  const double tokens = command_line.number("tokens", 0);
  if (command_line.has("tokens") && !(tokens >= 1 && std::isfinite(tokens)))
    reject("LS1005", cat("--tokens ", command_line.value("tokens"), ": tokens of the whole run are needed"), "write 1e12");
  return tokens;
}

}  // namespace

bool is_given(const LoadedConfig& loaded, const std::string& key) { return !config::given_at(loaded, key).empty(); }

const std::vector<const char*>& layout_keys() {
  static const std::vector<const char*> keys = {"parallel.tp",           "parallel.pp",       "parallel.cp",           "parallel.ep",
                                                "parallel.etp",          "parallel.dp",       "parallel.dp_replicate", "parallel.dp_shard",
                                                "parallel.zero",         "parallel.fsdp",     "parallel.schedule",     "parallel.virtual_stages",
                                                "parallel.layers_per_stage"};
  return keys;
}

void check_plan_flags(const CommandLine& command_line) {
  for (const Clash& clash : kClashes)
    if (written(command_line, clash.flag) && written(command_line, clash.other))
      contradict(cat("--", clash.flag, " beside --", clash.other, ": ", clash.why), clash.way_out);
  if (command_line.has("fill") && command_line.value("fill").empty())
    for (const char* flag : {"json", "table"})
      if (written(command_line, flag))
        contradict(cat("--fill without a file prints a run.toml in the place of the page, and --", flag, " is of the page"),
                   "--fill=FILE writes it beside");
  if (command_line.values("cluster").size() > 1)
    for (const char* flag : {"html", "fill", "why-not", "what-if", "slow", "table", "calibrate", "machine"})
      if (command_line.has(flag))
        contradict(cat("--", flag, " is of one plan, and several clusters are named"), cat("leave --", flag, " out, or name one cluster"));
  check_evidence(command_line);
}

void add_slow(Cluster& cluster, const std::string& text) {
  const auto refuse = [&](const std::string& why) { reject("LS1151", cat("--slow ", text, ": ", why), "write node=3:0.8 or nic=3:0.5"); };
  const size_t equals = text.find('='), colon = text.find(':');
  if (equals == std::string::npos || colon == std::string::npos || colon < equals) refuse("what, which node and how fast are needed");
  const std::string what = text.substr(0, equals);
  const auto node = parse_number<int>(text.substr(equals + 1, colon - equals - 1));
  const auto share = parse_number<double>(text.substr(colon + 1));
  if (what != "node" && what != "nic") refuse(cat("'", what, "' is neither node nor nic"));
  if (!node || *node < 0 || *node >= cluster.nodes) refuse(cat("the nodes are 0 to ", cluster.nodes - 1));
  if (!share || !(*share > 0 && *share <= 1)) refuse("a share of full speed above 0 and up to 1 is needed");
  if (what == "nic" && cluster.nodes == 1) refuse("one node uses no NICs");
  (what == "node" ? cluster.slow.nodes : cluster.slow.nics)[*node] = *share;
}

Cluster part_of(const Cluster& cluster, int devices) {
  const int per_node = cluster.devices_per_node;
  Cluster part = cluster;
  const bool by_words = cluster.origin.starts_with("preset") || cluster.origin.starts_with("words");
  const bool one_unit = cluster.devices() == std::max(per_node, cluster.domain);
  if (devices > cluster.devices() && !(by_words && one_unit))
    reject("LS1155", cat("-n ", devices, ": ", cluster.name, " has ", cluster.devices(), " devices"),
           cat("-n ", cluster.devices(), ", or a larger cluster"));
  if (devices > per_node && devices % per_node != 0)
    reject("LS1155", cat("-n ", devices, " are not whole nodes of ", per_node, " devices"),
           cat("-n ", devices / per_node * per_node, " or ", (devices / per_node + 1) * per_node));
  part.nodes = std::max(1, devices / per_node);
  part.devices_per_node = std::min(devices, per_node);
  part.domain = std::min(cluster.domain, devices);
  for (auto* slow : {&part.slow.nodes, &part.slow.nics}) std::erase_if(*slow, [&](const auto& entry) { return entry.first >= part.nodes; });
  return part;
}

PlanQuestion plan_question(const CommandLine& command_line, const std::string& cluster) {
  PlanQuestion question;
  question.loaded = load_config(command_line);
  AskedMachine asked = machine_asked(command_line, cluster, question.loaded.config);
  question.cluster = std::move(asked.machine.cluster);
  question.stack = std::move(asked.machine.stack);
  question.host = asked.host;
  question.calibration = std::move(asked.calibration);
  question.devices = devices_wanted(command_line, question);
  question.cluster = part_of(question.cluster, question.devices);
  for (const std::string& slow : command_line.values("slow")) add_slow(question.cluster, slow);
  Assumptions assume(question);
  assume.device();
  const bool by_flags = command_line.config_files().empty();
  if (by_flags && question.cluster.device.generation != Generation::kCpu) {
    const arch::ModelConfig model = arch::resolve_model(question.loaded.config.model, 1, question.loaded.config.moe);
    assume.precision();
    assume.sequence(model);
    assume.batch(model);
  }
  if (std::ranges::any_of(layout_keys(), [&](const char* key) { return is_given(question.loaded, key); })) {
    question.layout = program::layout_of(question.loaded, question.devices);
    question.model = question.layout->model;
  } else {
    settle(question);
  }
  question.options = options_of(command_line, question);
  assume.rows_of_experts();
  question.search = {.fixed = plan::parse_fixed(command_line.value("fixed")), .spare = spare_of(command_line), .estimate = question.options};
  question.why_not = command_line.values("why-not");
  question.tokens = tokens_of(command_line);
  return question;
}

}  // namespace lockstep::apps
