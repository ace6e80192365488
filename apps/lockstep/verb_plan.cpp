// lockstep plan: does it fit, how long is a step, what limits it, what is on every link, which layout is better - before anything runs.
#include "apps/lockstep/plan_compare.h"
#include "apps/lockstep/plan_evidence.h"
#include "apps/lockstep/plan_fill.h"
#include "apps/lockstep/plan_json.h"
#include "apps/lockstep/plan_report.h"
#include "apps/lockstep/verbs.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/call_rows.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/plan_html.h"
#include "lockstep/plan/this_machine.h"
#include "lockstep/program/predict/steps.h"

namespace lockstep::apps {
namespace {

// What was written, so that it can be written again.
std::string command_text(const CommandLine& command_line) {
  std::vector<std::string> words = {"lockstep"};
  for (const std::string& word : command_line.written) {
    const bool plain = word.find_first_of(" $\"'") == std::string::npos;
    words.push_back(plain ? word : cat("'", word, "'"));
  }
  return join(words, " ");
}

std::string filled(const CommandLine& command_line, const PlanQuestion& question, const PlanAnswer& answer) {
  const std::string predicted = cat("predicted: ", plan::time_text(answer.estimate.seconds, false), " a step on ", plan::describe(question.cluster));
  const std::string none = question.layout ? "" : plan::no_spare_text(answer.search);
  return filled_toml(question.loaded, answer.config, cat(command_text(command_line), "\n", predicted, none.empty() ? "" : "\n", none));
}

std::string html(const CommandLine& command_line, const PlanQuestion& question, const PlanAnswer& answer) {
  const program::Layout& layout = *answer.layout;
  const plan::Placement placement(question.cluster, layout.mesh, question.options.order);
  plan::PlanPage page = page_about(question, answer);
  page.command = command_text(command_line);
  page.config = filled(command_line, question, answer);
  page.calls = plan::call_rows(program::judged_steps(layout), answer.estimate.worst_stage * layout.pipelines(), placement);
  return plan::plan_html(page);
}

int plan_of(const CommandLine& command_line) {
  const PlanQuestion question = plan_question(command_line, command_line.value("cluster"));
  const bool drawn = command_line.has("html");
  const PlanAnswer answer = plan_answer(question, {.what_ifs = drawn || command_line.has("what-if"), .boxes = drawn});
  const bool only_fill = command_line.has("fill") && command_line.value("fill").empty();
  if ((command_line.has("fill") || drawn) && !answer.layout)
    throw OutOfMemoryError({.code = "LS1158", .what = "no layout fits, so there is none to write\n" + plan::rejected_text(answer.search),
                            .way_out = "more devices, a smaller batch or memory.offload"});
  if (only_fill) {
    print(filled(command_line, question, answer));
    return static_cast<int>(answer.fits() ? ExitCode::kOk : ExitCode::kOutOfMemory);
  }
  std::string text = command_line.json ? plan_json(question, answer).dump(2) + "\n" : plan_page(question, answer, {.all = command_line.has("table")});
  const auto write = [&](const char* flag, const std::string& content) {
    write_file(command_line.value(flag), content);
    if (!command_line.json) text += cat("written: ", command_line.value(flag), "\n");
  };
  if (command_line.has("fill")) write("fill", filled(command_line, question, answer));
  if (command_line.has("machine")) write("machine", plan::machine_toml({.machine = {.cluster = question.cluster, .stack = question.stack}, .host = question.host}));
  if (drawn) write("html", html(command_line, question, answer));
  print(text);
  return static_cast<int>(answer.fits() ? ExitCode::kOk : ExitCode::kOutOfMemory);
}

// Each with its best layout, or that of the configuration.
int compare(const CommandLine& command_line) {
  std::vector<OnCluster> clusters;
  bool fits = true;
  OrderedJson json = {{"clusters", OrderedJson::array()}};
  for (const std::string& text : command_line.values("cluster")) {
    OnCluster one{.text = text, .question = plan_question(command_line, text)};
    one.question.search.sensitivity = false;
    one.answer = plan_answer(one.question, {});
    fits = fits && one.answer.fits();
    json["clusters"].push_back(plan_json(one.question, one.answer));
    clusters.push_back(std::move(one));
  }
  print(command_line.json ? json.dump(2) + "\n" : compare_page(clusters));
  return static_cast<int>(fits ? ExitCode::kOk : ExitCode::kOutOfMemory);
}

}  // namespace

int verb_plan(const CommandLine& command_line) {
  refuse_words(command_line);
  check_plan_flags(command_line);
  if (command_line.has("evidence") || command_line.has("runs")) return plan_evidence(command_line);
  if (!command_line.has("cluster"))
    reject("LS1003", "lockstep plan needs --cluster CLUSTER: what the job would run on",
           cat("8xh100, \"64 nodes of 8xh200, leaf-spine 400G, 2:1\", here, a file, or one of ", join(plan::cluster_presets(), ", ")));
  return command_line.values("cluster").size() > 1 ? compare(command_line) : plan_of(command_line);
}

}  // namespace lockstep::apps
