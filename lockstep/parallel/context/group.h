// The ranks that each hold a part of every sequence, and the calls between them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/arch/cost.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/config/run_config.h"
#include "lockstep/nn/context_attention.h"
#include "lockstep/nn/linear.h"
#include "lockstep/program/call.h"

namespace lockstep::parallel {

struct ContextOptions {
  config::ContextKind kind = config::ContextKind::kRing;
  // Of 2d: neighbours that exchange heads for tokens, and those of equal place in all such groups, a ring. They outlive the group.
  comm::Communicator* inner = nullptr;
  comm::Communicator* outer = nullptr;
  bool overlap = true;  // keys and values travel while the caller works
  config::ContextSplit split = config::ContextSplit::kZigzag;  // of every sequence: how far a ring goes with a window follows from it
  bool documents = false;  // and from whether it follows documents (arch::ContextShard)
};

// Not thread-safe: one per rank. A group of one makes no calls.
class ContextGroup {
 public:
  // The communicator, which outlives the group, has the ranks of cp. InternalError where inner and outer of 2d do not make up these.
  ContextGroup(comm::Communicator& communicator, const ContextOptions& options);

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  const ContextOptions& options() const { return options_; }
  arch::ContextShard shard() const { return {.split = options_.split, .documents = options_.documents}; }

  // InternalError where these are not the tokens of this rank among those of the group.
  void check(const nn::TokenPlaces& places) const;

  enum class Over { kAll, kInner, kOuter };
  comm::Communicator& over(Over over);

  // `tensor` of every rank goes to the next one, that of the one before comes: one step of a ring. -> shaped like `tensor`. The caller leaves
  // `tensor` alone until it has asked for the result.
  nn::Pending shift(const at::Tensor& tensor, const program::CallId& id, Over over = Over::kAll);
  nn::Pending shift_back(const at::Tensor& tensor, const program::CallId& id, Over over = Over::kAll);  // the other way round
  // own [n, ...] of every rank -> [size, n, ...].
  nn::Pending gather(const at::Tensor& own, const program::CallId& id, Over over = Over::kAll);
  // whole [size, n, ...] of every rank, summed in the order of ranks -> [n, ...].
  nn::Pending reduce_scatter(const at::Tensor& whole, const program::CallId& id, Over over = Over::kAll);
  // Part p [size, n, ...] goes to rank p -> [size, n, ...], part p from rank p.
  nn::Pending exchange(const at::Tensor& parts, const program::CallId& id, Over over = Over::kAll);
  // The sum over the ranks, in place.
  void all_reduce(const at::Tensor& tensor, const program::CallId& id);

  // Seconds that this rank waited for its peers, by what it waited for ("shift", ...); since the last call.
  std::map<std::string, double> take_exposed() { return std::exchange(exposed_, {}); }

 private:
  nn::Pending pending(comm::Work work, const char* what, at::Tensor result);
  comm::CallOptions call(const program::CallId& id) const;

  comm::Communicator& communicator_;
  const ContextOptions options_;
  std::map<std::string, double> exposed_;
};

// As options().kind says. `block`: whose calls they are; `part` begins their names ("attention" -> "attention.ring").
std::unique_ptr<nn::ContextAttention> make_context_attention(ContextGroup& group, const program::CallId& block, const std::string& part);

}  // namespace lockstep::parallel
