// The life of a training step through the public API: a layout, the step program made of it, and two ranks - threads
// here, processes under `lockstep train` - that run the program and sum their gradients. About a second.
//   01_train [PREFIX]     token files PREFIX.bin and PREFIX.idx; without them the model learns to count
#include <ATen/Parallel.h>

#include <cstdio>
#include <future>

#include "lockstep/comm/shared_memory.h"
#include "lockstep/data/token_file.h"
#include "lockstep/engine/executor.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/verify/verify.h"
#include "lockstep/train/batches.h"
#include "lockstep/train/executor_options.h"

using namespace lockstep;

constexpr int kRanks = 2;

// A document that counts 0, 1, 2, ... 96, 0, ... so that every next token follows from the one before it.
std::string write_toy_tokens(const std::string& prefix, int64_t vocab_size) {
  std::vector<int32_t> ids(8192);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 97);
  data::TokenFileWriter writer(prefix, vocab_size);
  writer.add_document(ids);
  writer.finish();
  return prefix;
}

// One rank: its executor builds layers and parameters, and interprets its list of actions once per step.
std::vector<double> run_rank(comm::World& world, const config::RunConfig& config, const program::Layout& layout) {
  at::set_num_threads(1);
  engine::Groups groups(world, layout);
  engine::Executor executor(train::executor_options(config, layout), groups);
  const data::Sampler sampler = train::open_training_data(config, layout);
  std::vector<double> losses;
  for (int64_t step = 0; step < config.train.steps; ++step) {
    const double lr = optim::learning_rate(config.optimizer, step, config.train.steps);
    // The data is a pure function of the step: every rank takes its own part of the same global batch.
    const auto microbatches = train::load_step(
        sampler, layout, world.rank(), {.step = step, .first_sample = step * layout.global_batch}, at::kCPU);
    const engine::StepResult result = executor.step(microbatches, step + 1, lr);
    if (world.rank() == 0) std::printf("step %2ld  loss %.4f  |g| %.3f\n", step + 1, result.loss, result.grad_norm);
    losses.push_back(result.loss);
  }
  return losses;
}

int main(int argc, char** argv) try {
  config::RunConfig config;  // every field has a default; TOML files fill the same struct
  config.model.preset = "gpt2-test";
  config.train = {.steps = 20, .seq_len = 32, .global_batch = 16, .micro_batch = 4};
  config.optimizer = {.lr = 1e-2, .min_lr = 1e-3, .warmup_steps = 2};
  config.parallel.bucket_mib = 0.1;  // small, so that the program shows reductions inside the backward pass
  const arch::ModelConfig model = arch::resolve_model(config.model);
  config.data.train = argc > 1 ? argv[1] : write_toy_tokens("toy", model.vocab_size);

  const program::Layout layout = program::make_layout(config, model, kRanks);
  const program::Program program = program::build_program(layout);
  std::printf("%s\n%s\nrank 0: %s\n", arch::describe(model).c_str(), program::describe(layout).c_str(),
              program::program_text(program, layout, 0, {.width = 110, .indent = 8}).c_str());

  const auto region = std::make_shared<const launch::SharedRegion>(
      launch::SharedRegion::anonymous(launch::region_bytes(kRanks)));
  std::vector<std::future<std::vector<double>>> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      comm::SharedMemoryWorld world(region, rank, kRanks);
      return run_rank(world, config, layout);
    }));
  const std::vector<double> losses = ranks[0].get();
  return ranks[1].get() == losses && losses.back() < losses.front() ? 0 : 1;  // all ranks see the same loss
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
