#include "lockstep/plan/evidence/published_run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/usual_cluster.h"
#include "lockstep/plan/evidence/row_fields.h"

namespace lockstep::plan {
namespace {

RunModel::Experts experts_of(const RowFields& row) {
  return {.count = row.whole("experts").value_or(0),
          .per_token = row.whole("topk").value_or(0),
          .ffn = row.whole("expert_ffn").value_or(0),
          .shared_ffn = row.whole("shared_expert_ffn").value_or(0),
          .dense_layers = row.whole("dense_layers").value_or(0),
          .prediction_layers = row.whole("mtp_layers").value_or(0)};
}

RunModel::Latent latent_of(const RowFields& row) {
  return {.q_rank = row.whole("q_lora_rank").value_or(0),
          .kv_rank = row.whole("kv_lora_rank").value_or(0),
          .nope = row.whole("qk_head_dim").value_or(0),
          .rope = row.whole("qk_rope_dim").value_or(0),
          .value = row.whole("v_head_dim").value_or(0)};
}

RunModel model_of(const RowFields& row) {
  RunModel model{.id = row.text("id").value_or("")};
  model.layers = row.whole("layers");
  model.hidden = row.whole("hidden");
  model.heads = row.whole("heads");
  model.kv_heads = row.whole("kv_heads");
  model.head_dim = row.whole("head_dim");
  model.ffn = row.whole("ffn");
  model.vocab = row.whole("vocab");
  model.seq = row.whole("seq");
  model.params = row.number("params");
  model.gated = row.flag("gated_mlp");
  model.activation = row.text("activation").value_or("");
  if (const auto moe = row.object("moe")) model.experts = experts_of(*moe);
  if (const auto mla = row.object("mla")) model.latent = latent_of(*mla);
  if (const auto window = row.object("sliding_window"))
    model.window = RunModel::Window{.tokens = window->whole("window").value_or(0), .layers = window->whole("layers").value_or(0)};
  return model;
}

RunLayout layout_of(const RowFields& row) {
  RunLayout layout;
  layout.tp = row.whole("tp");
  layout.pp = row.whole("pp");
  layout.vpp = row.whole("vpp");
  layout.dp = row.whole("dp");
  layout.cp = row.whole("cp");
  layout.ep = row.whole("ep");
  layout.etp = row.whole("etp");
  layout.micro_batch = row.whole("micro_batch");
  layout.global_batch = row.whole("global_batch");
  layout.microbatches = row.whole("num_microbatches");
  layout.zero = row.whole("zero_stage");
  layout.sequence_parallel = row.flag("sequence_parallel");
  layout.recompute = row.text("recompute");
  layout.schedule = row.text("schedule");
  layout.precision = lower(row.text("precision").value_or(""));
  return layout;
}

// Devices are the product of the degrees: what of them is missing follows from the others.
void complete(PublishedRun& run) {
  RunLayout& of = run.layout;
  const int64_t cp = of.cp.value_or(1);
  const auto degree = [](int64_t number) { return number > 0 && number <= kMostDevices; };
  if (!of.dp || !degree(*of.dp) || !degree(cp)) return;
  const double copies = static_cast<double>(*of.dp) * static_cast<double>(cp);
  if (run.gpus == 0 && of.tp && of.pp && degree(*of.tp) && degree(*of.pp)) {
    const double all = copies * static_cast<double>(*of.tp) * static_cast<double>(*of.pp);
    if (all <= kMostDevices) run.gpus = static_cast<int>(all);
  }
  if (run.gpus == 0 || of.tp.has_value() == of.pp.has_value()) return;
  const int64_t known = of.tp.value_or(1) * of.pp.value_or(1);
  if (!degree(known) || copies * static_cast<double>(known) > run.gpus) return;
  const int64_t product = known * *of.dp * cp;
  if (run.gpus % product == 0) (of.tp ? of.pp : of.tp) = run.gpus / product;
}

PublishedRun run_of(const RowFields& row, const std::string& id) {
  PublishedRun run{.id = id, .source = row.text("source").value_or(""), .tier = row.text("tier").value_or("")};
  if (const auto model = row.object("model")) run.model = model_of(*model);
  if (const auto gpu = row.object("gpu")) run.device = gpu->text("name").value_or("");
  if (const auto layout = row.object("layout")) run.layout = layout_of(*layout);
  run.gpus = static_cast<int>(std::clamp<int64_t>(row.whole("n_gpus").value_or(0), 0, std::numeric_limits<int>::max()));
  run.flags = row.texts("flags");
  complete(run);
  const auto notes = row.json().find("notes");  // words for people: of any other type they say nothing here
  if (notes == row.json().end() || !notes->is_string()) return run;
  const std::string words = lower(notes->get<std::string>());
  run.eager = words.find("eager") != std::string::npos;
  run.compiled = !run.eager && words.find("compile") != std::string::npos;
  run.fused = words.find("fused") != std::string::npos;
  run.async = words.find("async") != std::string::npos;
  return run;
}

// gpus_per_node is a number, or words that tell apart what has how many: then it is as usual for the device.
RunSource source_of(const RowFields& row) {
  RunSource source{.title = row.text("title").value_or("")};
  const auto cluster = row.object("cluster");
  if (!cluster) return source;
  const auto per_node = cluster->json().find("gpus_per_node");
  if (per_node != cluster->json().end() && per_node->is_number_integer())
    source.gpus_per_node = static_cast<int>(std::clamp<int64_t>(per_node->get<int64_t>(), 0, kMostDevices));
  source.network = cluster->text("inter").value_or("");
  return source;
}

std::string id_of(const Json& row, const std::string& name) {
  const auto id = row.is_object() ? row.find("id") : row.end();
  if (id == row.end() || !(id->is_string() || id->is_number())) return name;
  return id->is_string() ? id->get<std::string>() : id->dump();
}

}  // namespace

PublishedRuns parse_published_runs(std::string_view text, std::string_view origin) {
  const Json file = parse_file_of_runs(text, origin);
  PublishedRuns result{.origin = std::string(origin)};
  const Json& rows = rows_of(file, origin);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string name = row_name(rows[i], i), id = id_of(rows[i], name);
    try {
      result.runs.push_back(run_of(RowFields(rows[i], result.origin, name), id));
    } catch (const DataError& error) {  // the others are read all the same
      result.runs.push_back({.id = id, .problem = error.message().what});
    }
  }
  const auto sources = file.is_object() ? file.find("sources") : file.end();
  if (sources == file.end() || !sources->is_object()) return result;
  for (const auto& [id, source] : sources->items())
    if (source.is_object()) result.sources[id] = source_of(RowFields(source, result.origin, cat("source ", id)));
  return result;
}

PublishedRuns read_published_runs(const std::filesystem::path& path) { return parse_published_runs(read_file(path), path.string()); }

}  // namespace lockstep::plan
