// Which way a group takes.
#include "lockstep/base/error.h"
#include "lockstep/parallel/context/all_gather.h"
#include "lockstep/parallel/context/ring.h"
#include "lockstep/parallel/context/two_d.h"

namespace lockstep::parallel {

std::unique_ptr<nn::ContextAttention> make_context_attention(ContextGroup& group, const program::CallId& block, const std::string& part) {
  const auto calls = [&](const char* what) { return block.of_part(part + "." + what); };
  switch (group.options().kind) {
    case config::ContextKind::kRing:
      return make_ring_attention(group, calls("ring"));
    case config::ContextKind::kAllToAll:
      return make_all_to_all_attention(group, calls("heads"));
    case config::ContextKind::kAllGather:
      return make_all_gather_attention(group, calls("gather"));
    case config::ContextKind::k2d:
      return make_2d_attention(group, {.heads = calls("heads"), .ring = calls("ring")});
  }
  throw InternalError("no such kind of context parallelism");
}

}  // namespace lockstep::parallel
