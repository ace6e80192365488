// The answer of `lockstep plan`, and its page for the terminal.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/lockstep/plan_question.h"
#include "lockstep/plan/plan_html.h"
#include "lockstep/plan/plan_text.h"

namespace lockstep::apps {

// Of --why-not: the best layout that has those fields, or where none is legal and fits the nearest.
struct Opposite {
  plan::WhyNot said{};
  std::optional<plan::StepEstimate> estimate{};  // where it is legal and fits
};

struct PlanAnswer {
  std::optional<program::Layout> layout{};  // that the page is about: of the configuration, else the best; none where none fits
  config::RunConfig config{};               // the same
  plan::Candidate candidate{};              // the same
  std::optional<double> rows_limit{};       // of `config`, where the plan had to set it (plan::rows_limit)
  plan::StepEstimate estimate{};
  plan::SearchResult search{};
  std::optional<plan::StepEstimate> healthy{};  // without what --slow says
  std::vector<plan::WhatIf> what_ifs{};
  std::vector<Opposite> opposites{};
  plan::MoneyOptions run{};                  // of --tokens, with what failures and saving take
  std::optional<plan::Goodput> goodput{};    // where the cluster says how fast it saves
  std::string failures{};                    // how often nodes fail, and who says so
  std::string ways_out{};                    // a table, where the layout does not fit
  bool fits() const { return layout && estimate.fits; }
};

struct AnswerOptions {
  bool what_ifs = false;
  bool boxes = false;  // of the estimate: for a drawing
};
PlanAnswer plan_answer(const PlanQuestion& question, const AnswerOptions& options);

// What starts a run of the layout.
struct Launch {
  std::string train{};  // "lockstep train run.toml -n 512", with the configuration that --fill writes
  std::string slurm{};  // a script that does the same on a cluster
  std::string flags{};  // behind any configuration of that model and batch: "-n 512 --parallel.tp=8 ..."
  std::string order{};  // what the launcher has to do where ranks do not stand on devices in their order
};
Launch launch_of(const PlanQuestion& question, const PlanAnswer& answer);

// What the page of --html is about, without the command that made it, the configuration and the calls of a rank.
plan::PlanPage page_about(const PlanQuestion& question, const PlanAnswer& answer);

struct PageOptions {
  bool all = false;  // --table: every stage, the whole front of time, memory and devices
};
// Begins a line with "does not fit: " where the layout, or each that was looked at, does not.
std::string plan_page(const PlanQuestion& question, const PlanAnswer& answer, const PageOptions& options);

// The candidate that a layout is.
plan::Candidate candidate_of(const program::Layout& layout);
// `base` with the fields of `fixed`; dp as `devices` leave it, where it is not one of them.
plan::Candidate with_fields(plan::Candidate base, const plan::Fixed& fixed, int devices);

}  // namespace lockstep::apps
