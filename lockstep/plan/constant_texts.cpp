// The constants of a stack in words for a reader who has not seen time/stack.h.
#include <algorithm>
#include <utility>

#include "lockstep/plan/plan_html_parts.h"

namespace lockstep::plan {
namespace {

constexpr std::pair<std::string_view, std::string_view> kTexts[] = {
    {"product_cap", "share of the peak that large products reach"},
    {"product_depth", "depth k at which products reach half of that"},
    {"fp8_cap", "the same share of the FP8 peak"},
    {"fp8_depth", "the same depth in FP8"},
    {"cast_bytes", "bytes moved for each element that is cast to FP8"},
    {"memory_share", "share of memory bandwidth that pointwise work gets"},
    {"pointwise_factor", "passes over memory, 1 = those of fused kernels"},
    {"attention_forward", "share of the peak, attention forward"},
    {"attention_backward", "share of the peak, attention backward"},
    {"attention_ramp", "keys at which attention reaches half of its share"},
    {"narrow_heads", "of that share, what heads of 64 and less get"},
    {"softmax_bytes", "bytes moved for each score where attention is not fused"},
    {"logit_bytes", "bytes moved for each logit, forward and backward"},
    {"unfused_beside_windows", "1: layers without a window run unfused in models that have windows"},
    {"recompute_outputs", "1: full recomputation makes a layer's last output again"},
    {"restore_products", "share of products that selective recomputation repeats"},
    {"restore_pointwise", "share of pointwise work that selective recomputation repeats"},
    {"optimizer_bytes", "bytes moved for the update of a parameter"},
    {"launch", "seconds of a kernel's launch"},
    {"host_share", "share of the kernels' time that the host adds"},
    {"expert_host", "seconds that a layer with experts takes at least, forward"},
    {"tensor_exposed", "share of tensor-parallel communication that computing does not hide"},
    {"context_exposed", "share of context-parallel communication that computing does not hide"},
    {"expert_exposed", "share of the exchange with experts that computing does not hide"},
    {"send_exposed", "share of pipeline sends that computing does not hide"},
    {"data_exposed", "share that computing loses while gradients travel beside it"},
    {"shard_exposed", "the same where parameters come and go with each layer (ZeRO 3)"},
    {"shard_calls", "collectives that gather one layer's parameters"},
    {"shard_nics", "NICs of a node that those use, 0 = all"},
    {"network_share", "share of its rate that a collective keeps beside computing"},
    {"straggle", "share of a step for each doubling of nodes"},
    {"reserved", "bytes of context, communicators and workspaces"},
    {"fragmentation", "share of what is allocated"},
    {"band", "half of the band that holds 9 of 10"},
    {"fp8_band", "the same of FP8"},
    {"expert_band", "the same of models with experts"},
};

}  // namespace

std::string_view constant_text(std::string_view constant) {
  const auto found = std::ranges::find(kTexts, constant, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kTexts) ? "" : found->second;
}

}  // namespace lockstep::plan
