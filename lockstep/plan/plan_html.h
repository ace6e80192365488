// The page about a plan: whether it fits, how long a step is and why, what the network carries, which other layouts there are, and where
// the numbers come from. One HTML file that refers to nothing outside.
#pragma once

#include <string>
#include <vector>

#include "lockstep/mesh/mesh.h"
#include "lockstep/plan/call_rows.h"
#include "lockstep/plan/search/search.h"
#include "lockstep/plan/time/goodput.h"

namespace lockstep::plan {

// The same layout under another condition: another network, a slow node, a constant that is 10 % larger.
struct WhatIf {
  std::string what{};  // "NICs of 100 GB/s"
  double seconds = 0;  // of a step then
  bool fits = true;
  std::string note{};  // what causes the change: "data parallelism waits 41 ms less"
  std::string group{};  // of conditions of one kind, which stand together: "something is slow"
  bool choice = false;  // another layout on the same cluster (other_choices.h)
};

// Of one layout that somebody asks about (`--why-not`).
struct WhyNot {
  std::string layout{};  // "tp=16,pp=2"
  std::string text{};
};

// How to start what the page is about.
struct Command {
  std::string what{};  // "with the run.toml that --fill=run.toml writes"
  std::string text{};
};

// Without a search, calls, what-ifs, goodput or why-nots the page says that there are none.
struct PlanPage {
  std::string title{};    // empty: "A training plan"
  std::string command{};  // that made the page
  std::string model{};    // arch::describe()
  std::string layout{};   // program::describe() of what `estimate` is of
  std::string config{};   // text of the run.toml
  mesh::Mesh mesh{};      // of the layout
  Candidate candidate{};  // the same as a point of the search
  bool given = false;     // by the configuration; else the search found it
  Order order = Order::kUsual;
  Cluster cluster{};
  Stack stack{};
  StepEstimate estimate{};  // with boxes and traffic
  std::vector<CallRow> calls{};
  SearchResult search{};
  std::vector<WhatIf> what_ifs{};
  std::string goodput{};  // one line
  std::vector<WhyNot> why_not{};
  MoneyOptions run{};     // how many tokens, on how many devices, what share of the time is useful
  std::vector<Command> commands{};
};

// The page. Sections: decision (findings.h, commands), fit (bars per stage against the device's memory), step (band, breakdown, Gantt that can be zoomed), network (rank
// map on leaves and nodes, loads of links, bytes by axis and collective), layouts (table with flags, scatter, parallel coordinates,
// what rejected the others), what-ifs, sensitivity, constants with origins, configuration. Below 400 KB for 16,384 ranks: nodes beyond 256
// are drawn as groups, long Gantts with some stages; what is left out is said. Light and dark, for paper, usable by keyboard; colours of
// Okabe and Ito, and no fact is told by colour alone. Needs JavaScript for zooming, hovering and copying alone, but for the Gantt.
// ConfigError LS1143 where the mesh has more ranks than the cluster devices.
std::string plan_html(const PlanPage& page);

// Flags of `lockstep train` that make a candidate of the configuration, with -n: "-n 512 --parallel.tp=8 ...". The same keys as
// with_candidate().
std::string launch_flags(const Candidate& candidate, const std::optional<double>& rows = std::nullopt);

}  // namespace lockstep::plan
