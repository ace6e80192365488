#include "apps/lockstep/plan_evidence.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "lockstep/base/file.h"
#include "lockstep/plan/evidence/evidence_svg.h"
#include "lockstep/plan/evidence/evidence_text.h"
#include "lockstep/plan/evidence/runs_json.h"

namespace lockstep::apps {
namespace {

constexpr const char* kShipped = LOCKSTEP_DATADIR "/lockstep/published_runs.json";

std::filesystem::path file_of(const CommandLine& command_line) {
  if (command_line.has("runs")) return command_line.value("runs");
  // Of a build, and installed.
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* folder : {".", ".."})
    if (const auto file = (program / folder / kShipped).lexically_normal(); std::filesystem::exists(file)) return file;
  reject("LS1003", cat("--evidence: ", kShipped, " is neither beside the program nor in .."), "--runs FILE names published runs");
}

std::vector<plan::Prediction> predictions_of(const std::filesystem::path& file, bool own_memory) {
  const auto estimate = [](const program::Layout& layout, const plan::Cluster& cluster, const plan::Stack& stack,
                           const plan::EstimateOptions& options) {
    return plan::estimate_step(layout, cluster, stack, options);
  };
  const plan::PredictOptions options{.own_memory = own_memory, .threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))};
  return plan::predict_runs(plan::read_published_runs(file), estimate, options);
}

int evidence(const CommandLine& command_line) {
  const std::string picture = command_line.value("evidence");
  const bool svg = picture.ends_with(".svg"), page = picture.ends_with(".md");
  if (!picture.empty() && !svg && !page) reject("LS1005", cat("--evidence=", picture, ": a file that ends in .svg or .md is needed"));
  const std::filesystem::path file = file_of(command_line);
  const std::vector<plan::Prediction> predictions = predictions_of(file, /*own_memory=*/false);
  const plan::Evidence evidence = plan::compare(predictions, plan::read_measured_runs(file));
  std::string text = cat("runs of ", file.filename().string(), "\n\n", plan::evidence_text(evidence));
  if (svg) write_file(picture, plan::evidence_svg(evidence));
  if (page) write_file(picture, plan::evidence_text(evidence, {.markdown = true}));
  if (!picture.empty()) text += cat("written: ", picture, "\n");
  print(text);
  return 0;
}

}  // namespace

int plan_evidence(const CommandLine& command_line) {
  if (command_line.has("evidence")) return evidence(command_line);
  if (!command_line.json)
    reject("LS1003", "--runs FILE names published runs, and nothing is asked of them",
           "add --json for a prediction of each, a line of JSON, or --evidence for their errors");
  print(plan::runs_json(predictions_of(file_of(command_line), /*own_memory=*/true)));
  return 0;
}

}  // namespace lockstep::apps
