// What `lockstep show` shows, and its form as JSON.
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/room.h"
#include "lockstep/program/program.h"
#include "lockstep/program/render/draw_context.h"

namespace lockstep::apps {

// A room that is too small.
struct Shortfall {
  plan::Room room;
  plan::Need need;
  std::vector<plan::WayOut> ways;
};

struct Shown {
  program::Layout layout;
  program::Program program;
  std::vector<int> ranks;  // those asked for: --rank R, or all
  bool timeline = false;   // --timeline
  int ranks_per_node = 8;  // --ranks-per-node
  std::vector<Shortfall> shortfalls{};  // of memory
  program::ContextQuestion context{};   // --documents, --flops, --bandwidth
};

// Whose parameters the formulas are of: the rank asked for, else one of every stage of a pipeline.
std::vector<int> ranks_of_summary(const Shown& shown);

// The object of --json with `lockstep show WHAT`.
std::string json_page(const Shown& shown, const std::string& what);

}  // namespace lockstep::apps
