// The rules of verify.h by what they are about. Internal to the verifier.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/verify/verify.h"

namespace lockstep::program {

// [once], [order] and [free] of what one rank computes, and of its own transfers from transfer_activations on. The indices
// of its actions exist.
std::vector<std::string> check_passes(const Program& program, const Layout& layout, int rank, Pass after);

// [match] and [deadlock] over the ranks of pp; of programs in which check_passes found nothing.
std::vector<std::string> check_pipelines(const Program& program, const Layout& layout, Pass after);
// [recompute] of one rank's list of layers' actions, whose indices all exist.
std::vector<std::string> check_recomputed(const Program& program, const Layout& layout, int rank);
// [gather], [reshard] and [prefetch] of one rank's list, whose indices all exist.
std::vector<std::string> check_gathered(const Program& program, const Layout& layout, int rank);

// [reduce] and [complete] where there is one shard and gradients stay.
std::vector<std::string> check_reductions(const Program& program, const Layout& layout, int rank);
// [reduce], [complete], [shard_grad] and [reduce_shard] where there are several shards or transient gradients.
std::vector<std::string> check_sharded_gradients(const Program& program, const Layout& layout, int rank);
// [partial], [update], [pull] and [stale] of one rank's list, whose indices all exist.
std::vector<std::string> check_update(const Program& program, const Layout& layout, int rank, Pass after);
// [fetch], [state] and [input] of one rank's list, whose indices all exist.
std::vector<std::string> check_offloaded(const Program& program, const Layout& layout, int rank);
// [life] of one rank's list in which the other rules found nothing.
std::vector<std::string> check_life(const Program& program, const Layout& layout, int rank);

}  // namespace lockstep::program
