#include <algorithm>
#include <filesystem>
#include <numeric>

#include "lockstep/base/checked.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/fields.h"

namespace lockstep::config {
namespace {

// Stages of a rank where virtual_stages does not say; 0 = as the grid of the file has it.
int stages_of_rank(ScheduleKind kind) {
  if (kind == ScheduleKind::kFile) return 0;
  return kind == ScheduleKind::kInterleaved || v_shaped(kind) ? 2 : 1;
}

// The first and the last stage have the embedding and the head beside their blocks.
int least_blocks(size_t stage, size_t stages) { return stage == 0 || stage + 1 == stages ? 0 : 1; }

// As `wanted`, with as many stages and blocks as there are: taken from the fullest, added to the emptiest.
std::vector<int> blocks_that_fit(std::vector<int> wanted, size_t stages, int64_t layers) {
  const auto sum_of = [&] { return std::accumulate(wanted.begin(), wanted.end(), int64_t{0}); };
  if (wanted.size() != stages || sum_of() > 2 * layers) return even_blocks(static_cast<int64_t>(stages), layers);
  for (size_t i = 0; i < stages; ++i) wanted[i] = std::max(wanted[i], least_blocks(i, stages));
  for (int64_t sum = sum_of(); sum < layers; ++sum) ++*std::min_element(wanted.begin(), wanted.end());
  for (int64_t sum = sum_of(); sum > layers; --sum) {
    const auto spare = [&](size_t stage) { return wanted[stage] > least_blocks(stage, stages) ? wanted[stage] : 0; };
    size_t fullest = 0;
    for (size_t i = 1; i < stages; ++i)
      if (spare(i) > spare(fullest)) fullest = i;
    --wanted[fullest];
  }
  return wanted;
}

constexpr int64_t kMostStagesFitted = 256;

Suggestion named(const std::vector<int>& blocks) {
  const std::string text = blocks_text(blocks);
  return {.changes = {{"parallel.layers_per_stage", text}}, .text = cat("use ", text)};
}

// layers_per_stage beside the stages and the layers that there are.
void block_problems(const RunConfig& config, int64_t stages, const std::string& product, const Expect& expect) {
  const std::vector<int>& blocks = config.parallel.layers_per_stage.list;
  const int64_t layers = config.model.layers.value_or(-1);
  const char* key = "parallel.layers_per_stage";
  const std::string list = cat("layers_per_stage = ", blocks_text(blocks));
  const Suggestion out{.changes = {{.key = key}}, .text = "leave it out"};
  const Ways fit = layers < 0                   ? Ways({out}, cat("name ", stages, " counts"))
                   : stages > kMostStagesFitted ? Ways{out}
                                                : Ways{named(blocks_that_fit(blocks, static_cast<size_t>(stages), layers)), out};
  expect(std::ssize(blocks) == stages, key,
         cat(list, " names ", blocks.size(), blocks.size() == 1 ? " stage" : " stages", ", but ", product, " = ", stages), fit);
  if (std::ssize(blocks) != stages) return;
  const int64_t sum = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  expect(layers < 0 || sum == layers, key, cat(list, " has ", sum, " blocks, but model.layers = ", layers), fit);
  for (size_t i = 0; i < std::min<size_t>(blocks.size(), kMostStagesFitted); ++i)
    expect(blocks[i] >= least_blocks(i, blocks.size()), key, cat("stage ", i, " of ", list, " has no layer"), fit);
}

// Degrees that are worth a try: the largest, those next to it, and powers of two below.
std::vector<Suggestion> from_above(const char* key, int64_t largest) {
  std::vector<std::string> values;
  for (int64_t value = largest; value >= 1 && value > largest - 8; --value) values.push_back(cat(value));
  for (int64_t power = 1 << 20; power >= 1; power /= 2)
    if (power <= largest - 8) values.push_back(cat(power));
  return values_of(key, values);
}

void stage_problems(const RunConfig& config, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  const int64_t pp = parallel.pp, each = pipeline_choice(config).virtual_stages, stages = pp * each;
  if (each == 0) return;  // only the grid says it
  const std::string product = each == 1 ? cat("pp(", pp, ")") : cat("pp(", pp, ") x virtual_stages(", each, ")");
  const int64_t layers = saturating_add(config.model.layers.value_or(stages), 2);
  const int64_t fewer_each = layers / pp, fewer_ranks = layers / each;
  const bool grid = parallel.schedule.kind == ScheduleKind::kFile;  // it has as many stages as it has
  std::vector<Suggestion> fits;
  if (grid) fits = values_of("model.layers", {cat(stages - 2)});
  if (!grid && fewer_ranks >= 1) fits = from_above("parallel.pp", fewer_ranks);
  if (parallel.virtual_stages > 1 && !grid && !v_shaped(parallel.schedule.kind) && fewer_each > 1)
    fits = fits + from_above("parallel.virtual_stages", fewer_each);
  fits = fits + values_of("parallel.schedule", {"1f1b"});
  const bool enough = stages <= layers;
  expect(enough, "parallel.pp",
         cat(product, " = ", stages, " stages, but embedding + model.layers(", layers - 2, ") + head = ", layers, " layers"),
         fits);
  if (enough && !parallel.layers_per_stage.list.empty()) block_problems(config, stages, product, expect);
}

void schedule_key_problems(const ParallelSection& parallel, const Expect& expect) {
  const PipelineSchedule& schedule = parallel.schedule;
  const std::string name = name_of(schedule);
  const int each = parallel.virtual_stages;
  expect(each <= 1 || stages_of_rank(schedule.kind) != 1, "parallel.virtual_stages",
         cat("virtual_stages(", each, "), but schedule ", name, " has one stage of a rank"),
         {{.changes = {{"parallel.virtual_stages", "1"}}}, {.changes = {{"parallel.schedule", "interleaved"}}}});
  expect(each == 0 || each == 2 || !v_shaped(schedule.kind), "parallel.virtual_stages",
         cat("virtual_stages(", each, "), but schedule ", name, " has two stages of a rank"),
         values_of("parallel.virtual_stages", {"2"}));
  expect(schedule.kind != ScheduleKind::kFile || schedule.grid, "parallel.schedule",
         cat("schedule ", name, ": there is no file ", schedule.file),
         Ways({left_out("parallel.schedule")}, "name a CSV file; the path starts in the working directory"));
}

// What an update cannot be taken back with, or what is gone by then: the key and why.
std::vector<std::pair<std::string, std::string>> against_post_validation(const RunConfig& config) {
  std::vector<std::pair<std::string, std::string>> found;
  if (config.train.nonfinite == NonFinite::kSkip)
    found.emplace_back("train.nonfinite", "nonfinite = \"skip\" wants to know of a step before the next one begins");
  if (zero_stage(config) == 3) found.emplace_back("parallel.zero", "zero 3 drops and gathers parameters that it would take back");
  if (!config.memory.offload.list.empty()) found.emplace_back("memory.offload", "offload updates on the host");
  if (config.parallel.data_parallel == DataParallel::kParameterServer)
    found.emplace_back("parallel.data_parallel", "a parameter server updates for all ranks");
  if (uses_muon(config) && (config.parallel.tp > 1 || config.parallel.etp > 1 || zero_stage(config) > 0))
    found.emplace_back("optimizer.kind", "what travels for Muon between the ranks that share matrices is gone");
  if (config.moe.scope == MoeScope::kLastStep)
    found.emplace_back("moe.scope", "scope = \"last_step\" wants the counts of a step before the next one begins");
  return found;
}

void post_validation_problems(const RunConfig& config, const Expect& expect) {
  if (config.parallel.post_validation != PostValidation::kOn) return;
  for (const auto& [key, why] : against_post_validation(config))
    expect(false, "parallel.post_validation", cat("post_validation = \"on\" beside ", key, ": ", why),
           values_of("parallel.post_validation", {"auto", "off"}));
}

// What would be read by nobody.
void unused_key_problems(const ParallelSection& parallel, const Expect& expect) {
  const ParallelSection unset{};
  const auto cut_or_unset = [](const char* key) { return values_of("parallel.pp", {"2", "3", "4"}) + std::vector{left_out(key)}; };
  expect(parallel.schedule == unset.schedule, "parallel.schedule",
         cat("schedule ", name_of(parallel.schedule), " is of a pipeline, but pp = 1"),
         cut_or_unset("parallel.schedule"));
  expect(parallel.virtual_stages <= 1, "parallel.virtual_stages",
         cat("virtual_stages(", parallel.virtual_stages, ") are of a pipeline rank, but pp = 1"),
         cut_or_unset("parallel.virtual_stages"));
  expect(parallel.layers_per_stage.list.empty(), "parallel.layers_per_stage",
         cat("layers_per_stage = ", blocks_text(parallel.layers_per_stage.list), " cuts a pipeline, but pp = 1"),
         cut_or_unset("parallel.layers_per_stage"));
  expect(parallel.post_validation == unset.post_validation, "parallel.post_validation",
         cat("post_validation = \"", name_of(parallel.post_validation), "\" is of a pipeline, but pp = 1"),
         cut_or_unset("parallel.post_validation"));
}

}  // namespace

bool uses_muon(const RunConfig& config) {
  const std::vector<OptimizerRule>& rules = config.optimizer.rules.list;
  return config.optimizer.kind == OptimizerKind::kMuon ||
         std::any_of(rules.begin(), rules.end(), [](const OptimizerRule& rule) { return rule.optimizer == OptimizerKind::kMuon; });
}

std::vector<int> even_blocks(int64_t stages, int64_t layers) {
  std::vector<int> blocks(static_cast<size_t>(stages), static_cast<int>(layers / stages));
  if (layers < stages) {  // then the first and the last have the embedding and the head alone
    std::fill(blocks.begin(), blocks.end(), 1);
    blocks.back() = 0;
    if (layers < stages - 1) blocks.front() = 0;
    return blocks;
  }
  for (int64_t i = 0; i < layers % stages; ++i) ++blocks[static_cast<size_t>(i)];
  return blocks;
}

std::string blocks_text(const std::vector<int>& blocks) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < blocks.size();) {
    size_t end = i + 1;
    while (end < blocks.size() && blocks[end] == blocks[i]) ++end;
    runs.push_back(end == i + 1 ? cat(blocks[i]) : cat(blocks[i], "*", end - i));
    i = end;
  }
  return cat('"', join(runs, ","), '"');
}

PipelineChoice pipeline_choice(const RunConfig& config) {
  const ParallelSection& parallel = config.parallel;
  const ScheduleKind kind = parallel.schedule.kind;
  // The others end on all ranks at once: there is nothing to gain.
  const bool gains = kind == ScheduleKind::kZbH2 || kind == ScheduleKind::kZbV;
  const bool chosen = parallel.post_validation == PostValidation::kAuto && gains && against_post_validation(config).empty();
  const int stages = parallel.pp > 1 ? stages_of_rank(kind) : std::min(1, stages_of_rank(kind));
  return {.virtual_stages = parallel.virtual_stages > 0 ? parallel.virtual_stages : stages,
          .blocks = parallel.layers_per_stage.list,
          .post_validation = parallel.pp > 1 && (parallel.post_validation == PostValidation::kOn || chosen)};
}

void read_schedule(RunConfig& config) {
  PipelineSchedule& schedule = config.parallel.schedule;
  std::error_code unreadable;
  if (config.parallel.pp > 1 && schedule.kind == ScheduleKind::kFile && !schedule.grid &&
      std::filesystem::is_regular_file(schedule.file, unreadable))
    schedule.grid = read_file(schedule.file);
}

void pipeline_problems(const RunConfig& config, const Expect& expect) {
  if (config.parallel.pp == 1) return unused_key_problems(config.parallel, expect);
  schedule_key_problems(config.parallel, expect);
  post_validation_problems(config, expect);
  stage_problems(config, expect);
}

}  // namespace lockstep::config
