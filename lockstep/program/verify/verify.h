// The checks that a step program must pass before anything runs it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/passes/passes.h"

namespace lockstep::program {

// Of a program built up to the pass `after`: a check applies from the pass on that makes what it is about.
// One line per broken rule with its name in brackets; empty = sound. A list that many ranks run is proved once, as that of
// the first of them at each place where it means something else (rank_class.h), and so is a pipeline of lists.
//   [ranks]       every rank of the mesh runs a list; every index of an action exists; parts are of blocks whose experts lie on several ranks
//   [once]        each layer has one F and one backward (B, or I and W) per microbatch, on the rank that holds it
//   [order]       F of a microbatch in the order of the layers, backward in the opposite order, each F before its B,
//                 W after I; backward and W of a layer in the order of the microbatches, or in that of the grid from a file
//   [free]        what F keeps is freed by one B, or one W
//   [match]       transfers stand where a stage's neighbour is on another rank; the two ranks of a channel send and receive
//                 the same in the same order
//   [reshard]     nothing is dropped that the layout keeps until its next use, or only to be gathered again at once
//   [buckets]     every unit of the flat buffer lies in one bucket, whose range is that of its units; transient gradients:
//                 every unit by itself
//   [reduce]      gradients are summed by the action of the layout's kind of data parallelism
//   [update]      LOSS behind all that computes, NORM behind LOSS
//   [validate]    with post-validation one VALIDATE on every rank, ahead of all that adds to gradients; ahead of it only F,
//                 transfers of activations and TOKENS, and no RECV_F whose SEND_F is behind the sender's; otherwise none
//   [deadlock]    all ranks of a data group, of a tp group and of a group of experts issue the same communication in the same order; the lists
//                 of a pipeline all come to their end when run against each other, with Program::channel_depth tensors on
//                 their way in every channel; else the actions that wait in a circle
//   [life]        of what actions touch (effects.h): what is used is there, here, whole and summed; what is changed is not yet
//                 as it will be; the sums of a gradient are made in one order (kSums), once, and nothing is added behind them;
//                 what is made was not there and is used up once; what is gathered is used before it is dropped; left at the end
//                 are parameters and optimizer state as the next step finds them, loss and norm, and gradients on ranks that do
//                 not update. So RECOMPUTE, UNSHARD, FETCH, REDUCE_*, STEP, PULL and their like stand once where they are needed
//   [prefetch]    beside no computing action do more than prefetch_limit bytes of parameters wait for a later one; on the host
//                 not more than two units that were fetched wait to be gathered, or lie there from disk for their update
std::vector<std::string> verify(const Program& program, const Layout& layout, Pass after = Pass::kOffload);

// The step program that an engine runs: all passes for the layout, the result verified. InternalError that names the pass which
// broke a rule.
Program build_program(const Layout& layout);

}  // namespace lockstep::program
