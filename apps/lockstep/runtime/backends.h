// From who this process is to the world of ranks: picks the backend and joins the others through it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "apps/lockstep/command_line.h"
#include "lockstep/comm/world.h"
#include "lockstep/train/same_job.h"

namespace lockstep::apps {

// Joins the ranks of the job over the backend that launch::choose_backend names; blocks until those that another
// launcher has started have come (train.join_timeout). `deadline` is of every later wait for a peer. Rank 0 of such a
// job says on standard error who told the ranks their places, which backend it is and why. All ranks compare
// what they were told, the verb, its flags and `facts`, before any call that depends on the configuration: on one host
// through shared memory, since the backend is part of what may differ; else over the backend. Not for a job of one rank.
// Errors as train::require_same_job, launch::choose_backend, launch::share_region, comm::open_store and the backend's join,
// which refuses where it is not built.
std::unique_ptr<comm::World> join_world(const CommandLine& command_line, const config::RunConfig& config,
                                        std::chrono::milliseconds deadline,
                                        const std::function<std::vector<train::Fact>()>& facts);

}  // namespace lockstep::apps
