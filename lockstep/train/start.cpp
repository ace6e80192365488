#include "lockstep/train/start.h"

#include <ATen/Parallel.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/optimizer.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/source.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/checkpoint/hf_import.h"
#include "lockstep/config/fields.h"
#include "lockstep/train/trainer.h"

namespace lockstep::train {
namespace {

std::string bytes_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

std::string memory_text(const program::MemoryBytes& memory, int64_t device_limit) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < program::kNumMemoryCategories; ++i) {
    const auto category = static_cast<program::MemoryCategory>(i);
    if (category != program::MemoryCategory::kHost)
      parts.push_back(cat(program::category_name(category), " ", bytes_text(memory[category])));
  }
  const int64_t host = memory[program::MemoryCategory::kHost];
  return cat(bytes_text(memory.peak), " at most at one time, of ", join(parts, " + "),
             device_limit > 0 ? cat("; device_limit ", bytes_text(device_limit)) : "",
             host > 0 ? cat("; on the host ", bytes_text(host)) : "");
}

std::string optimizer_text(const config::OptimizerSection& o) {
  const arch::OptimizerSpec& chosen = arch::optimizer_spec(config::name_of(o.kind));
  const arch::OptimizerSpec& by_element = chosen.whole_matrix ? arch::optimizer_spec() : chosen;
  const std::string of_matrices =
      chosen.whole_matrix ? cat(chosen.text, "  lr ", number_text(o.muon_lr.value_or(o.lr)), ", momentum ", number_text(o.momentum), ", ",
                                o.ns_steps, " iterations in ", config::name_of(o.ns_precision), ", weight decay ",
                                number_text(o.muon_weight_decay.value_or(o.weight_decay)), "; beside it ")
                          : "";
  return cat(of_matrices, by_element.text, "  lr ", number_text(o.lr), " -> ", number_text(o.min_lr), " after ", o.warmup_steps,
             " warm-up steps, betas ", number_text(o.beta1), " ", number_text(o.beta2), ", weight decay ",
             number_text(o.weight_decay), ", clip ", o.max_grad_norm > 0 ? number_text(o.max_grad_norm) : "off",
             o.rules.list.empty() ? "" : cat("; ", o.rules.list.size(), " rules"));
}

}  // namespace

Json data_identity(const config::RunConfig& config, const program::Layout& layout, const data::Sampler& sampler) {
  Json identity = {{"tokens", sampler.tokens().num_tokens()},
                   {"shuffle", config.data.shuffle},
                   {"seed", config.train.seed},
                   {"seq_len", layout.seq_len}};
  // Checkpoints of before have nothing of documents.
  if (sampler.packing()) identity["pack"] = std::string(config::name_of(config.data.pack));
  if (sampler.options().rules.mask) identity["document_mask"] = true;
  if (sampler.options().rules.reset_positions) identity["reset_positions"] = true;
  return identity;
}

HeaderTable run_header(const TrainJob& job, const engine::Executor& executor) {
  const config::RunConfig& config = job.loaded.config;
  const program::Layout& layout = job.layout;
  HeaderTable table{.title = cat("lockstep train ", config.run.name, "  ->  ", config.run.dir), .rows = {}};
  const auto row = [&](const char* name, const std::string& value) { table.rows.emplace_back(name, value); };
  row("model", arch::describe(layout.model));
  if (!config.model.from.empty()) {
    const std::filesystem::path folder = source_folder(config.model.from);
    row("from", folder.string());
    for (const std::string& note : arch::load_hf_config(folder).notes) row("", note);
  }
  row("layout", program::describe(layout));
  row("ranks", cat(job.world.size(), " on ", job.world.backend(), ", started by ", job.launcher, ", ", at::get_num_threads(),
                   " compute threads each"));
  const int context = layout.context_shard().ranks;
  row("batch", cat("global_batch(", layout.global_batch, ") = micro_batch(", layout.micro_batch, ") x microbatches(",
                   layout.num_microbatches(), ") x dp(", layout.mesh.degree(layout.samples()), "); ",
                   layout.global_batch * layout.seq_len, " tokens a step",
                   context > 1 ? cat(", ", layout.tokens_here(), " of each sequence on a rank of cp(", context, ")") : ""));
  row("optimizer", optimizer_text(config.optimizer));
  row("memory", cat("predicted per rank ",
                    memory_text(program::predict_memory(layout, executor.program(), job.world.rank()),
                                layout.device_limit)));
  if (job.predicted) row("step", cat("predicted ", predicted_text(*job.predicted)));
  return table;
}

void report_memory(const engine::Executor& executor, int64_t step, RunOutput& output) {
  const program::MemoryBytes predicted = program::predict_memory(executor.layout(), executor.program(), 0);
  const program::MemoryBytes measured = executor.measured_memory();
  OrderedJson values;
  for (const auto& [kind, bytes] : {std::pair{"predicted", predicted}, {"measured", measured}}) {
    for (size_t i = 0; i < program::kNumMemoryCategories; ++i)
      values[cat(kind, "/", program::category_name(static_cast<program::MemoryCategory>(i)))] = bytes.bytes[i];
    values[cat(kind, "/peak")] = bytes.peak;
  }
  output.note("memory of rank 0    predicted    measured");
  const auto line = [&](std::string_view name, int64_t expected, int64_t actual) {
    output.note(cat("  ", pad_right(name, 15), pad_left(bytes_text(expected), 12), pad_left(bytes_text(actual), 12)));
  };
  for (size_t i = 0; i < program::kNumMemoryCategories; ++i) {
    const auto category = static_cast<program::MemoryCategory>(i);
    if (category != program::MemoryCategory::kHost)
      line(program::category_name(category), predicted[category], measured[category]);
  }
  line("peak", predicted.peak, measured.peak);
  const int64_t host = predicted[program::MemoryCategory::kHost];
  if (host > 0) line("host", host, measured[program::MemoryCategory::kHost]);
  output.event("memory", step, values);
}

double worst_memory_gib(const engine::Executor& executor, engine::Groups& groups) {
  const at::Tensor bytes = at::tensor({executor.measured_memory().peak}, at::kLong);
  groups.world()
      .all_reduce(bytes, {.id = program::call_id(program::Purpose::kMemory), .algorithm = program::Algorithm::kDirect, .op = comm::ReduceOp::kMax})
      .wait();
  return static_cast<double>(bytes.item<int64_t>()) / static_cast<double>(kGiB);
}

std::string activity_report(const Activity& activity, int calls) {
  std::string text = cat("rank ", activity.rank, " was asked what it does\n");
  for (const auto& [group, all] : activity.calls) {
    std::vector<std::string> lines = split(all, '\n');
    if (lines.back().empty()) lines.pop_back();
    if (lines.empty()) lines.push_back("  none");
    const auto shown = std::min<std::ptrdiff_t>(calls, std::ssize(lines));
    text += cat("last calls on group ", group, ", newest last:\n", join({lines.end() - shown, lines.end()}, "\n"), "\n");
  }
  if (!activity.save.empty()) text += cat("saving a checkpoint: ", activity.save, "\n");
  return cat(text, "stack, innermost first:\n", activity.stack);
}

bool load_start_values(const config::RunConfig& config, engine::Executor& executor) {
  if (config.model.from.empty()) return false;
  const std::vector<engine::StateTensor> state = executor.store().state();
  checkpoint::import_hf(source_folder(config.model.from), executor.layout().model, state);
  executor.store().loaded();
  return true;
}

}  // namespace lockstep::train
