// From who this process is to the world of ranks: picks the backend and joins the others through it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "lockstep/comm/world.h"
#include "lockstep/config/run_config.h"
#include "lockstep/launch/identity.h"

namespace lockstep::apps {

// Joins the ranks of the job over the backend that launch::choose_backend names; blocks until those that another
// launcher has started have come (train.join_timeout). `deadline` is of every later wait for a peer. Rank 0 of such a
// job says on standard error who told the ranks their places, which backend it is and why. `compare` is called once,
// with all ranks, before any call that depends on the configuration: on one host through shared memory, since the
// backend is part of what may differ; else over the backend. Not for a job of one rank. Errors as `compare`,
// launch::choose_backend, launch::share_region, comm::open_store and the backend's join, which refuses where it is not
// built.
std::unique_ptr<comm::World> join_world(const launch::Identity& identity, const config::RunConfig& config,
                                        std::chrono::milliseconds deadline,
                                        const std::function<void(comm::World&)>& compare);

}  // namespace lockstep::apps
