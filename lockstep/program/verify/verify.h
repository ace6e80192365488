// The checks that a step program must pass before anything runs it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/program/passes/build.h"

namespace lockstep::program {

// How far the program has been built; a check applies from the pass on that makes what it is about.
std::string_view pass_name(Pass pass);

// One line per broken rule with its name in brackets; empty = sound. A list that many ranks run is proved once, as that of
// the first of them at each place where it means something else (rank_class.h), and so is a pipeline of lists.
//   [ranks]       every rank of the mesh runs a list; every index of an action exists
//   [once]        each layer has one F and one backward (B, or I and W) per microbatch, on the rank that holds it
//   [order]       F of a microbatch in the order of the layers, backward in the opposite order, each F before its B,
//                 W after I; backward and W of a layer in the order of the microbatches, or in that of the grid from a file;
//                 RECV before what uses it, SEND after what makes it and before LOSS
//   [free]        what F keeps is freed by one B, or one W
//   [match]       where a stage's neighbour is on another rank, one transfer for every microbatch; and the two ranks of a
//                 channel send and receive the same in the same order
//   [recompute]   one RECOMPUTE of every microbatch for blocks that do not keep all, after their F and with nothing that
//                 computes between it and their B or I; none for others
//   [gather]      transient parameters are gathered before every action that reads them, and never while they are; zero 1
//                 and 2: UNSHARD of every unit once, after its STEP; otherwise no UNSHARD
//   [reshard]     what is dropped was gathered and used; nothing is dropped that the layout keeps until its next use, and
//                 all is dropped before STEP
//   [prefetch]    beside no computing action do more than prefetch_limit bytes wait for a later one
//   [buckets]     every unit of the flat buffer lies in one bucket, whose range is that of its units; transient gradients:
//                 every unit by itself
//   [reduce]      every bucket is reduced once where several ranks share its sum, transient gradients once for every
//                 microbatch, and never with one; by the action of the layout's kind of data parallelism
//   [complete]    nothing is added to a bucket after its reduction started; to transient gradients not before SHARD_GRAD
//   [shard_grad]  transient gradients: SHARD_GRAD once for every bucket and microbatch, after its REDUCE_GRAD
//   [reduce_shard]  with several shards or transient gradients, and several ranks on dp_replicate: once for every bucket,
//                 after the last REDUCE_GRAD and SHARD_GRAD of it; otherwise none
//   [tied]        one REDUCE_TIED on the two ranks that hold the same parameters, after their last reduction and the last
//                 action that adds to them, before REDUCE_PARTIAL and NORM; on no other
//   [partial]     one REDUCE_PARTIAL, after the last reduction and before NORM, on the ranks that hold optimizer state and
//                 gradients that are parts of a sum; on no other
//   [update]      one LOSS and one NORM on every rank after the last backward and the last reduction; after NORM one STEP, or
//                 where units are updated one by one that of each, on the ranks that hold optimizer state, and on no other
//   [pull]        parameter server: every rank pulls every bucket once, after NORM and STEP; otherwise none
//   [validate]    with post-validation one VALIDATE on every rank, ahead of all that adds to gradients; ahead of it only F,
//                 transfers of activations and TOKENS, and no RECV_F whose SEND_F is behind the sender's; otherwise none
//   [stale]       no F or B after STEP or PULL
//   [fetch]       offloaded parameters are fetched before anything reads or gathers them, once, evicted once after it and
//                 before STEP, and at most two units ahead of their gathering; parameters that stay on the device are
//                 fetched once after their STEP and before their UNSHARD, and never evicted; otherwise none
//   [matrices]    where matrices that are updated whole lie scattered: of their units one GATHER_UPDATE after NORM, one SCATTER_UPDATE
//                 after it, then STEP; of no other
//   [state]       optimizer state on disk: fetched once before its STEP, evicted once after it, of at most two units at a
//                 time; of no other unit
//   [input]       offloaded inputs of layers that are computed again: evicted once after F, fetched once after that and
//                 before RECOMPUTE; of no other layer
//   [deadlock]    all ranks of a data group, and of a tp group, issue the same communication in the same order; the lists
//                 of a pipeline all come to their end when run against each other, with Program::channel_depth tensors on
//                 their way in every channel; else the actions that wait in a circle
//   [life]        of what actions touch (effects.h), where no other rule is broken: what is used is there, here, whole and
//                 summed; what is made was not there and is used up once; what is started is joined; left at the end are
//                 parameters and optimizer state as the next step finds them, and what it validates
std::vector<std::string> verify(const Program& program, const Layout& layout, Pass after = Pass::kOffload);

}  // namespace lockstep::program
