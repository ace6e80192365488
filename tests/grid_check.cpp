// Builds and proves the programs of pipeline grids for pipeline_grids_test.py: a JSON object a line on standard input,
// {"file", "ranks", "microbatches"}; a line each on standard output.
#include <iostream>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/config/check.h"
#include "lockstep/plan/simulate.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/verify/verify.h"

namespace {

using namespace lockstep;

// A model with a block for every stage and two more, in as many stages as the grid has.
program::Layout layout_of(const OrderedJson& request) {
  config::RunConfig config;
  config.model.preset = "gpt2-test";
  config.model.layers = request.at("stages").get<int>() + 2;
  config.train.global_batch = request.at("microbatches");
  config.train.micro_batch = 1;
  config.train.seq_len = 16;
  config.parallel.pp = request.at("ranks");
  config.parallel.schedule = {.kind = config::ScheduleKind::kFile, .file = request.at("file").get<std::string>()};
  config.parallel.post_validation =
      request.value("post_validation", "off") == "on" ? config::PostValidation::kOn : config::PostValidation::kOff;
  config::read_schedule(config);
  return program::make_layout(config, arch::resolve_model(config.model), config.parallel.pp);
}

OrderedJson answer_to(const OrderedJson& request) {
  const program::Layout layout = layout_of(request);
  const program::Program program = program::build_program(layout);  // proved
  int64_t peak = 0;
  for (int rank = 0; rank < layout.pipeline.ranks; ++rank)
    peak = std::max(peak, program::predict_memory(layout, program, rank).peak);
  const plan::Simulation simulation = plan::simulate(program, layout, plan::unit_times(program, layout));
  return {{"virtual_stages", layout.pipeline.virtual_stages},
          {"problems", program::verify(program, layout)},
          {"channel_depth", program.channel_depth},
          {"peak", peak},
          {"seconds", simulation.use.step_seconds}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    OrderedJson answer;
    try {
      answer = answer_to(OrderedJson::parse(line));
    } catch (const Error& error) {
      answer = {{"code", error.message().code}, {"what", error.message().what}};
    }
    std::cout << answer.dump() << "\n";
  }
}
