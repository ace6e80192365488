// A training step as data: per rank a list of actions. Passes (passes.h) build it, verify.h checks it, render.h draws it,
// engine/ interprets it and plan/ will simulate it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/program/layout.h"

namespace lockstep::program {

// An asynchronous action (REDUCE_GRAD, PUSH, PULL) starts where it stands and is waited for at the first action that uses
// its result: REDUCE_PARTIAL, NORM and STEP use every reduced bucket, the next step's first F uses what was pulled.
enum class ActionKind {
  kForward,         // F   forward of a layer (of a whole stage before expand_layers) for a microbatch
  kBackward,        // B   = I then W
  kBackwardInput,   // I   gradient of the input
  kBackwardWeight,  // W   gradients of the weights, accumulated into the gradient buffer
  kReduceGrad,      // REDUCE_GRAD  a bucket: all-reduce of the sum over the data axes
  kPush,            // PUSH  a bucket: every rank sends its gradients, the server sums them in rank order
  kLoss,            // LOSS  all-reduce of loss sum, token count and the non-finite flag over the ranks of a model replica
  kReducePartial,   // REDUCE_PARTIAL  gradients that are parts of a sum over tp: of norms, biases and positions under
                    // sequence parallelism, of key/value heads that several ranks share
  kNorm,            // NORM  gradient norm over all parameters once, the clip factor and the one division by the tokens
  kStep,            // STEP  the optimizer, on what this rank owns
  kPull,            // PULL  a bucket: the server sends updated parameters to every rank
};
std::string_view action_name(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = -1;       // before expand_layers
  int layer = -1;       // after it
  int microbatch = -1;
  int bucket = -1;      // REDUCE_GRAD, PUSH, PULL
  bool operator==(const Action&) const = default;
};

// Gradients that travel together: the units of consecutive layers, hence one contiguous slice of the flat gradient buffer.
struct Bucket {
  std::vector<int> layers;  // in backward order; units complete in this order
  int64_t begin = 0;        // elements of the flat buffer
  int64_t end = 0;
  int64_t numel() const { return end - begin; }
  bool operator==(const Bucket&) const = default;
};

struct Program {
  std::vector<std::vector<Action>> ranks;
  std::vector<Bucket> buckets;  // in the order in which backward fills them; the same on every rank
  bool operator==(const Program&) const = default;
};

// All passes for the layout, each result verified. InternalError if a pass broke the program.
Program build_program(const Layout& layout);

}  // namespace lockstep::program
