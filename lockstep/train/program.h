// The program `lockstep` as a function: for a program of a user's own, which adds its kinds of blocks (arch/branch_kind.h,
// model/parts.h, model/forward_block.h) and presets (arch/own_preset.h) and has all of its verbs then (docs/own_model.md).
#pragma once

#include <string>
#include <vector>

namespace lockstep::train {

// The command line without the name of the program: {"train", "run.toml", "-n", "2", "--parallel.tp=2"}. Does what `lockstep` does with
// it, in this process or, with several ranks, in copies of this program that are started with the same arguments: its main() must come
// here for them as well. Errors are told on standard error; returns the exit code (docs/errors.md). To be called once, by the only thread.
int run_program(const std::vector<std::string>& arguments);
// Of main().
int run_program(int argc, const char* const* argv);

}  // namespace lockstep::train
