// Experts of a config.json.
#include <algorithm>
#include <numeric>

#include "lockstep/arch/hf_reading.h"

namespace lockstep::arch {
namespace {

constexpr double kGateFactor = 1.702;  // of ExpertSizes::clamp

// The router of deepseek_v3.
void sigmoid_experts(HfReading& r) {
  const HfKeys& keys = r.keys;
  ExpertSizes& e = r.model().experts;
  const int64_t layers = r.model().layers;
  e.router = config::Router::kSigmoid;
  e.router_bias = true;
  e.groups = keys.size("n_group", keys.json().contains("n_group") ? 1 : 8);
  e.top_groups = keys.size("topk_group", keys.json().contains("topk_group") ? 1 : 4);
  e.routed_scale = keys.positive("routed_scaling_factor", 2.5);
  e.shared = keys.size("n_shared_experts", 1);
  const int64_t dense = keys.size("first_k_dense_replace", 3, /*least=*/0);
  if (dense >= layers) r.problem(cat("first_k_dense_replace(", dense, ") leaves no layer with experts"));
  e.dense_layers.resize(static_cast<size_t>(std::min(dense, layers)));
  std::iota(e.dense_layers.begin(), e.dense_layers.end(), 0);
  if (!keys.flag("norm_topk_prob", true)) r.unsupported("norm_topk_prob = false: sigmoid scores are weights in proportion");
  if (const int64_t step = keys.size("moe_layer_freq", 1); step != 1) r.unsupported(cat("moe_layer_freq = ", step));
  if (keys.text("scoring_func", "sigmoid") != "sigmoid") r.unsupported("scoring_func other than sigmoid");
  if (keys.text("topk_method", "noaux_tc") != "noaux_tc") r.unsupported("topk_method other than noaux_tc");
  r.read.further_layers = keys.size(kFurtherLayersKey, 1, /*least=*/0);
  if (keys.has(kFurtherLayersKey) && r.read.further_layers > 0)
    r.note(cat(kFurtherLayersKey, " = ", r.read.further_layers, ": layers behind the last that predict further tokens are not taken"));
}

// An MLP of `ffn` in their place: where mlp_only_layers says so, and in all layers but every decoder_sparse_step-th.
void dense_layers(HfReading& r) {
  const int64_t layers = r.model().layers, step = r.keys.size("decoder_sparse_step", 1);
  const std::vector<int64_t> listed = r.keys.indices("mlp_only_layers", layers);
  std::vector<int>& dense = r.model().experts.dense_layers;
  for (int64_t i = 0; i < layers; ++i)
    if ((i + 1) % step != 0 || std::ranges::find(listed, i) != listed.end()) dense.push_back(static_cast<int>(i));
  if (std::ssize(dense) == layers) r.problem("mlp_only_layers and decoder_sparse_step leave no layer with experts");
}

// The experts of gpt-oss.
void clamped_experts(HfReading& r) {
  ExpertSizes& e = r.model().experts;
  e.logit_bias = e.biases = true;
  e.clamp = r.keys.positive("swiglu_limit", 7.0);
  const double alpha = r.keys.positive("swiglu_alpha", kGateFactor);
  if (alpha != kGateFactor) r.unsupported(cat("swiglu_alpha = ", number_text(alpha), ": of ", number_text(kGateFactor)));
}

}  // namespace

void read_experts(HfReading& r) {
  const HfExperts& theirs = r.family->experts;
  if (!theirs.count) return;
  const HfKeys& keys = r.keys;
  ExpertSizes& e = r.model().experts;
  const bool other = theirs.other_count && keys.has(theirs.other_count);
  e.count = keys.size(other ? theirs.other_count : theirs.count);
  if (other && keys.has(theirs.count) && keys.size(theirs.count) != e.count)
    r.problem(cat(theirs.count, " and ", theirs.other_count, " differ"));
  e.per_token = keys.size("num_experts_per_tok");
  e.ffn = theirs.ffn ? keys.size(theirs.ffn) : r.model().ffn;
  const bool normed = !theirs.norm_key || keys.flag("norm_topk_prob", false);
  e.router = normed ? config::Router::kSoftmaxAfterTopk : config::Router::kSoftmax;
  if (theirs.sigmoid) sigmoid_experts(r);
  if (theirs.clamped) clamped_experts(r);
  if (theirs.dense_layers) dense_layers(r);
  if (const double coefficient = keys.above_zero("router_aux_loss_coef"); coefficient > 0)
    r.note(cat("router_aux_loss_coef = ", number_text(coefficient),
               " is not taken: the auxiliary loss is what moe.balance and moe.aux_coefficient say"));
  if (const double noise = keys.above_zero("router_jitter_noise"); noise > 0)
    r.unsupported(cat("router_jitter_noise = ", number_text(noise), ": no noise before the router"));
}

}  // namespace lockstep::arch
