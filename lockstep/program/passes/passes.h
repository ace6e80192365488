// The passes that make a step program, in their order. Each is a pure function of what the one before it made, in a
// file of its own: pass_<name>.cpp. A further parallelism between layers is one more pass.
//
// A pass changes every list once, as that of the first rank that runs it. That holds for all its ranks: of a rank's place a
// pass reads the coordinate on pp (its layers, ties and neighbours), and update whether it owns optimizer state. Units have
// the same sizes and the same partial parameters on all ranks of tp (arch::flat_layout), and shards are equal parts of them:
// neither tp nor the data axes change where anything stands, what is on disk (placement.h) or whether REDUCE_PARTIAL is there.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// A list for every coordinate on pp, which all ranks there run.
Program by_pipeline_rank(const Layout& layout, std::vector<std::vector<Action>> lists);

// What goes in front of an action, by its position; behind the last one at the end.
using Insertions = std::map<size_t, std::vector<Action>>;
std::vector<Action> merged(const std::vector<Action>& actions, const Insertions& before);

// The program with make(rank, list) in place of every list; `rank` is the first that runs it.
template <typename Make>
Program with_lists(Program program, const Make& make) {
  const std::vector<int> ranks = program.first_ranks();
  for (size_t i = 0; i < ranks.size(); ++i) program.lists[i] = make(ranks[i], program.lists[i]);
  return program;
}

// F, B, I and W of whole stages, as Layout::pipeline says (schedules.h).
Program schedule(const Layout& layout);

// A stage becomes its layers: F in ascending order, B, I and W in descending one. RECOMPUTE directly before the B of every block that
// does not keep all (Layout::recompute).
Program expand_layers(Program program, const Layout& layout);

// Where a stage's neighbour is on another rank of pp: SEND_F directly after the F of its last layer, SEND_B after the B or I
// of its first one; RECV_F and RECV_B ahead of the stretch of a stage that needs what they bring, with overlap in front of
// the stretch that computes before it. Both begin where they stand and every direction between two ranks has a channel of
// its own, whose RECVs are in the order of its SENDs: what is used later and sent earlier is received early. Sets channel_depth,
// so that no order of the stages deadlocks in transfers.
Program transfer_activations(Program program, const Layout& layout);

// With Layout::overlap_experts: where an F and a backward pass of two microbatches are neighbours that need not wait for each other
// (config::pairs_of), the blocks of both whose experts lie on several ranks are divided, DISPATCH and COMBINE stand between their
// parts, and the two lists take turns at them: rows of the one travel while the other computes. RECVs that stand between the two
// come ahead of both. All other passes through layers stay whole.
//   F b0a m1 | DISPATCH_F b0 m1 | B b1a m0 | COMBINE_B b1 m0 | F b0b m1 | COMBINE_F b0 m1 | B b1b m0 | DISPATCH_B b1 m0 | F b0c m1 ...
// (DeepSeek-AI 2024, DualPipe; of interleaved stages as Megatron-Core does.)
Program divide_layers(Program program, const Layout& layout);

// Transient parameters (Layout::transient_parameters): UNSHARD before the first of the actions that read a unit, RESHARD
// after the last, for every stretch of its use. A stretch ends where another unit is read before the next use, unless that
// is in the same microbatch and reshard_after_forward is off, or in a later one and reshard_after_microbatch is. UNSHARD
// stands `prefetch` computing actions earlier than its use, as far as the bytes gathered for later stay within
// prefetch_limit beside every computing action, and in the order of uses. Where it would stand directly behind the RESHARD
// of its own unit there are neither: the parameters stay. Prefetch is a plan made here, never found at run time (against
// Zhao et al. 2023, PyTorch FSDP, section 3.3).
Program shard_parameters(Program program, const Layout& layout);
Action unshard(int unit);

// Fills program.buckets and adds REDUCE_GRAD (ring) or PUSH (parameter server) of every bucket whose domain has several ranks to
// sum it: with overlap directly after the last backward that writes into it, else all after the last
// backward. While gradients accumulate over microbatches nothing is communicated.
// With zero: REDUCE_GRAD over dp_shard where that axis has several ranks, REDUCE_SHARD over dp_replicate where that one
// has, one computing action later. Transient gradients (Layout::transient_gradients): every unit a bucket by itself; it is
// reduced after every microbatch (in a pipeline once, after the last: other microbatches come in between), and SHARD_GRAD follows one computing action later (at once without overlap, or where
// nothing is reduced); REDUCE_SHARD directly after the SHARD_GRAD of the last microbatch.
Program reduce_gradients(Program program, const Layout& layout);

// LOSS, REDUCE_TIED where another pipeline rank holds the same parameters (Layout::tied_peer), REDUCE_PARTIAL where the rank has such gradients, NORM and STEP at the end. Parameter server: REDUCE_PARTIAL and
// STEP on the server alone, then PULL of every bucket. Zero 1 and 2: STEP and UNSHARD unit by unit, in forward order.
// Where matrices that are updated whole lie scattered (matrices.h): GATHER_UPDATE, SCATTER_UPDATE and STEP of every unit that has
// some, with overlap GATHER_UPDATE one unit ahead and STEP one unit behind.
Program update(Program program, const Layout& layout);

// What Layout::offload names, moved ahead of its use (double buffered) and back or dropped after it. Parameters: FETCH and
// EVICT take the place of UNSHARD and RESHARD where nothing is sharded, else FETCH stands one UNSHARD ahead of its own and
// EVICT behind RESHARD. Optimizer: STEP unit by unit, on the host; what is on disk (placement.h) with FETCH of the next
// unit before it and EVICT after it, the first FETCH before the last microbatch's backward; parameters that stay on the
// device follow with FETCH, and one STEP later UNSHARD where that is to come. Activations: EVICT after F of a layer that
// keeps its input alone, FETCH one layer ahead of its RECOMPUTE. RefusedConfig LS4010 as host_plan.
Program offload(Program program, const Layout& layout);

// Of the rank: units of one group of consecutive layers in backward order, a bucket closed once it holds `bucket_bytes` of fp32 gradients or
// more; in the order in which backward completes them. 0 = every unit by itself.
std::vector<Bucket> gradient_buckets(const Layout& layout, int rank);

// The passes in their order, behind the schedule, which comes first.
enum class Pass { kSchedule, kExpandLayers, kTransferActivations, kDivideLayers, kShardParameters, kReduceGradients, kUpdate, kPostValidation, kOffload };
struct PassStep {
  Pass pass;
  const char* name;
  Program (*make)(Program, const Layout&);
};
std::span<const PassStep> pass_steps();

// Not verified: verify/verify.h has what runs.
Program make_program(const Layout& layout);
// The forward pass of one microbatch without gradients, with the parameters it needs.
Program evaluation_program(const Layout& layout);

}  // namespace lockstep::program
