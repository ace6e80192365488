#include "lockstep/program/verify/build.h"

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

void require_sound(const Program& program, const Layout& layout, Pass pass) {
  const std::vector<std::string> problems = verify(program, layout, pass);
  LOCKSTEP_CHECK(problems.empty(), "after pass ", pass_name(pass), ":\n  ", join(problems, "\n  "));
}

}  // namespace

// A sound result says that every pass was; only what is not is made again, to name the pass that broke it.
Program build_program(const Layout& layout) {
  Program program = make_program(layout);
  if (verify(program, layout).empty()) return program;
  Program again = schedule(layout);
  require_sound(again, layout, Pass::kSchedule);
  for (const PassStep& step : pass_steps()) {
    again = step.make(std::move(again), layout);
    require_sound(again, layout, step.pass);
  }
  return again;
}

}  // namespace lockstep::program
