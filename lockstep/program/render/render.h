// Programs, layouts, memory and traffic as text for people.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// The layers that a rank holds: "embed..b1", or of several stages "embed..b0, b3..head".
std::string layers_text(const Layout& layout, int rank);

struct ProgramTextOptions {
  int width = 0;   // wrap lines at " | " to this many columns; 0 = one line
  int indent = 0;  // of the lines after the first
  bool compact = false;  // neighbouring layers as one ("F embed..head m0"), repeated microbatches as one ("m0..m6 (...)");
                         // with sharding, offload or recomputation folded_texts()
};
// "F embed m0 | F b0 m0 | ... | NORM | STEP" of one rank; in the compact form divided layers as "B head..embed m0 in turns with
// F embed..head m1".
std::string program_text(const Program& program, const Layout& layout, int rank,
                         const ProgramTextOptions& options = {});

// The compact form of programs whose parameters, gradients or activations come and go: neighbouring rounds of actions that do
// the same to the next layers as the first and the last of them, "(F b0, RESHARD b0, UNSHARD b2) .. (F b9, RESHARD b9,
// UNSHARD b11) m0", one action alone as "F embed..head m0"; and microbatches that do the same once: "m = 0..6 (...)", where "m-1"
// is the one before.
std::vector<std::string> folded_texts(const std::vector<Action>& actions, const std::vector<Bucket>& buckets,
                                      int num_layers);

// The programs over time, a lane for computing and one for the network of each rank (of the first `max_ranks`):
//                m0                m1
//   rank 0 compute Fe F0 Fh Bh B0 Be Fe F0 Fh Bh B0 Be               NORM STEP
//          network                                  Rh R0 Re   LOSS
// F0a, F0b, F0c = the parts of a divided F; d and c = DISPATCH_F and COMBINE_F, C and D = COMBINE_B and DISPATCH_B, of a block.
// e, 0, 1, .., h = embedding, blocks, head; 0r = the rows of a block, 0x = its experts (arch::ParameterGroup). Computing: F, B, I, W; f = RECOMPUTE,
// U = STEP of one unit, G and O = GATHER_UPDATE and SCATTER_UPDATE; - = RESHARD or EVICT of parameters and S = SHARD_GRAD,
// which take little time. On the network: + = UNSHARD, R = REDUCE_GRAD,
// A = REDUCE_SHARD, > = PUSH, < = PULL of the bucket of these layers. A third lane where things are offloaded: + = FETCH
// of parameters, +s and -s FETCH and EVICT of optimizer state, +x and -x of an input. Not to scale: every action is one
// slot. Communication starts once all its ranks have come to it, one call after the other; what uses its result waits.
std::string draw_program(const Program& program, const Layout& layout, int max_ranks = 4);

// One block as the ranks of a tp group hold it: its matrices [out, in], every cell marked with the rank that holds it (the
// first of several), and where the block communicates, with the bytes of the whole tensor. Rows and heads are those of
// `rank`. A matrix that is cut into more parts than are drawn shows some of them. Of experts one that the rank has, marked with the ranks
// of its etp group. With experts a block of each kind.
std::string draw_block(const Layout& layout, int rank);

// Who holds what, for `ranks`: coordinates, layers, sequences of the global batch, predicted bytes by category. Beyond
// 32 ranks they are left out, with a line that says so.
std::string layout_table(const Program& program, const Layout& layout, const std::vector<int>& ranks);
// Predicted memory of one rank by category, with what each is made of, the peak and where it is, limit and host.
std::string memory_table(const Program& program, const Layout& layout, int rank);
// What a block keeps of a microbatch for its backward under each choice of recomputation, and how many blocks do so.
std::string kept_table(const Layout& layout, int rank);
// A chart of the rank's memory over its program: a column per action (or several, the one that holds most), categories
// stacked, the limit as a line.
std::string draw_memory(const Program& program, const Layout& layout, int rank);
// The predicted ledger, a row per site, with `buckets` a row for each bucket: of each group of `ranks` that make the same calls
// (traffic.h), with the ranks of the group.
std::string ledger_tables(const Program& program, const Layout& layout, const std::vector<int>& ranks, bool buckets);
// A pipeline stage by stage: what it holds, and how much its ranks send in a step of each kind of site.
std::string stages_table(const Program& program, const Layout& layout, const std::vector<int>& ranks);
// One synchronisation of the gradients that each of `ranks` holds over the data axes by both kinds of data parallelism:
// the literature's formulas beside what the ledgers predict; of one rank the same for fp16 gradients.
std::string traffic_summary(const Layout& layout, const std::vector<int>& ranks);
// What moves between device, host and disk (predict/moves.h) as a table; empty where nothing does.
std::string moves_table(const Program& program, const Layout& layout, int rank);
// Groups, placement and traffic between servers (predict/rank_map.h); nothing for one rank.
std::string groups_table(const Layout& layout);
std::string rank_map_page(const Program& program, const Layout& layout, int ranks_per_node);
// With several shards: what each of `ranks` sends in a step of zero 1, 2 and 3, formulas beside predictions (traffic.h).
std::string sharding_summary(const Program& program, const Layout& layout, const std::vector<int>& ranks);

}  // namespace lockstep::program
