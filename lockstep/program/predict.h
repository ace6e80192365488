// The predicted ledger: what a rank puts on the links in one step, found by walking its program.
#pragma once

#include <optional>

#include "lockstep/program/ledger.h"
#include "lockstep/program/program.h"

namespace lockstep::program {

// Sites and calls, as engine/ makes them over the data axes ("dp"):
//   reduce_grad bucket k   all_reduce, ring, fp32
//   push bucket k          reduce to the server, direct, fp32
//   pull bucket k          broadcast from the server, direct, in the compute precision
//   loss                   all_reduce, direct: loss sum, tokens and the non-finite flag as 3 fp64
//   norm                   parameter server: broadcast from the server, direct: 1 fp64
// The communication of one action on `rank`; nothing where it makes none or its group has one rank.
struct PlannedCall {
  LedgerKey key;
  CollectiveCall call;
  int group_rank = 0;
};
std::optional<PlannedCall> planned_call(const Layout& layout, const Program& program, int rank, const Action& action);
// All of them. Empty where the data axes have one rank.
Ledger predict_ledger(const Layout& layout, const Program& program, int rank);

// What the literature says of one synchronisation of S bytes of gradients over n ranks, in bytes.
// Ring (Patarasuk & Yuan 2009): every link carries 2 (n - 1) / n S. Parameter server (Li et al. 2014): the server's
// link carries (n - 1) S of gradients in and (n - 1) S of parameters out.
double ring_link_bytes(double gradient_bytes, int ranks);
double server_link_bytes(double gradient_bytes, int ranks);

}  // namespace lockstep::program
