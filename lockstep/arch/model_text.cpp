// A model in words.
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/arch/layer_letters.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

// "124.4M".
std::string count_text(int64_t parameters) {
  const double number = static_cast<double>(parameters);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), parameters < 1'000'000'000 ? "%.1fM" : "%.2fB", number / (number < 1e9 ? 1e6 : 1e9));
  return text.data();
}

// "32 heads (8 kv)"; "128 heads of latents 1536 and 512".
std::string heads_text(const ModelConfig& model) {
  const LatentSizes& latent = model.latent;
  if (model.has_latent()) return cat(model.heads, " heads of latents ", latent.q_rank, " and ", latent.kv_rank);
  return cat(model.heads, " heads", model.kv_heads == model.heads ? "" : cat(" (", model.kv_heads, " kv)"));
}

// "24 state heads of 64 x 128".
std::string state_space_text(const StateSpaceSizes& sizes) {
  return cat(sizes.heads, " state heads of ", sizes.head_size, " x ", sizes.state, sizes.groups == 1 ? "" : cat(" in ", sizes.groups, " groups"));
}

// "ffn 3072"; "8 experts of ffn 14336, 2 per token", with what else there is.
std::string feed_forward_text(const ModelConfig& model) {
  const ExpertSizes& experts = model.experts;
  const std::string dense = cat("ffn ", model.ffn);
  if (!model.has_experts()) return dense;
  const int64_t blocks = dense_mlps(model);
  return cat(blocks == 0 ? "" : cat(dense, " in ", blocks, blocks == 1 ? " block, " : " blocks, "), experts.count, " experts of ffn ",
             experts.ffn, ", ", experts.per_token, experts.shared == 0 ? "" : cat(" and ", experts.shared, " shared"), " per token");
}

}  // namespace

std::string describe(const ModelConfig& model) {
  std::vector<std::string> parts;
  if (has_attention(model)) parts.push_back(heads_text(model));
  if (model.has_state_space()) parts.push_back(state_space_text(model.state_space));
  if (model.has_experts() || dense_mlps(model) > 0) parts.push_back(feed_forward_text(model));
  parts.push_back(cat("vocab ", model.vocab_size));
  parts.push_back(count_text(num_parameters(model)) + " parameters");
  if (model.has_experts()) parts.push_back(count_text(num_active_parameters(model)) + " active");
  return cat(family_name(model.family), " ", model.layers, " x ", model.hidden, blocks_text(model), ", ", join(parts, ", "));
}

}  // namespace lockstep::arch
