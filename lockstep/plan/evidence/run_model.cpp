#include "lockstep/plan/evidence/run_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "lockstep/arch/params.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

constexpr int64_t kMostLayers = 1 << 14, kMostOfASize = int64_t{1} << 32;

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError({.code = "LS1146", .what = what, .way_out = "it cannot be predicted from what is printed"});
}

// All of them, once it is known that they are printed.
struct Sizes {
  double layers = 0, hidden = 0, heads = 0, kv_heads = 0, head = 0, ffn = 0, vocab = 0, seq = 0, matrices = 0;
};

Sizes sizes_of(const RunModel& model) {
  std::vector<std::string> missing;
  const auto take = [&](std::string_view name, const std::optional<int64_t>& size) {
    if (!size || *size < 1) missing.emplace_back(name);
    return static_cast<double>(size.value_or(1));
  };
  Sizes sizes{.layers = take("layers", model.layers), .hidden = take("hidden", model.hidden), .heads = take("heads", model.heads),
              .vocab = take("vocab", model.vocab), .seq = take("seq", model.seq)};
  const bool only_experts = model.experts && model.experts->dense_layers == 0;
  if (!only_experts) sizes.ffn = take("ffn", model.ffn);
  if (model.experts && (model.experts->count < 1 || model.experts->per_token < 1 || model.experts->ffn < 1)) missing.emplace_back("moe");
  if (!missing.empty()) refuse(cat("sizes of the model are not printed: ", join(missing, ", ")));
  for (const auto& size : {model.kv_heads, model.head_dim})
    if (size == 0) refuse("a model without key heads, or whose heads have no size");
  if (*model.layers > kMostLayers) refuse(cat("a model of ", *model.layers, " layers"));
  for (const auto& size : {model.hidden, model.heads, model.kv_heads, model.head_dim, model.ffn, model.vocab, model.seq})
    if (size && (*size < 0 || *size > kMostOfASize)) refuse(cat("a model with a size of ", *size));
  sizes.kv_heads = static_cast<double>(model.kv_heads.value_or(*model.heads));
  sizes.head = static_cast<double>(model.head_dim.value_or(std::max<int64_t>(1, *model.hidden / *model.heads)));
  sizes.matrices = model.gated.value_or(model.experts.has_value()) ? 3 : 2;
  return sizes;
}

// Multiplications of one token in the projections of attention of one layer, and in its scores and sums over `seen` tokens.
double projections(const RunModel& model, const Sizes& of) {
  if (!model.latent) return of.hidden * of.head * (2 * of.heads + 2 * of.kv_heads);
  const auto number = [](int64_t size) { return static_cast<double>(size); };
  const RunModel::Latent& latent = *model.latent;
  const double q = number(latent.q_rank), kv = number(latent.kv_rank);
  const double nope = number(latent.nope), rope = number(latent.rope), value = number(latent.value);
  return of.hidden * (q + kv + rope) + of.heads * (q * (nope + rope) + kv * (nope + value) + value * of.hidden);
}
double core(const RunModel& model, const Sizes& of, double seen) {
  if (!model.latent) return 2 * of.heads * of.head * seen;
  return of.heads * static_cast<double>(model.latent->nope + model.latent->rope + model.latent->value) * seen;
}

double feed_forwards(const RunModel& model, const Sizes& of) {
  const double dense = of.matrices * of.hidden * of.ffn;
  if (!model.experts) return of.layers * dense;
  const RunModel::Experts& experts = *model.experts;
  const double dense_layers = static_cast<double>(experts.dense_layers);
  const double wide = static_cast<double>(experts.per_token * experts.ffn + experts.shared_ffn);
  return dense_layers * dense + (of.layers - dense_layers) * of.hidden * (of.matrices * wide + static_cast<double>(experts.count));
}

void set_experts(const RunModel& row, MappedModel& mapped) {
  const RunModel::Experts& from = *row.experts;
  arch::ExpertSizes& experts = mapped.model.experts;
  experts.count = from.count;
  experts.per_token = from.per_token;
  experts.ffn = from.ffn;
  if (!row.gated.value_or(true)) {
    experts.ffn = std::max<int64_t>(1, std::llround(static_cast<double>(from.ffn) * 2 / 3));
    mapped.notes.push_back(cat("experts without a gate as gated ones of the same size: ffn ", experts.ffn, " instead of ", from.ffn));
  }
  if (from.shared_ffn > 0) {
    experts.shared = std::max<int64_t>(1, std::llround(static_cast<double>(from.shared_ffn) / static_cast<double>(from.ffn)));
    if (experts.shared * from.ffn != from.shared_ffn)
      mapped.notes.push_back(cat("shared expert of ", experts.shared * from.ffn, " instead of ", from.shared_ffn));
  }
  experts.dense_layers.resize(static_cast<size_t>(std::clamp<int64_t>(from.dense_layers, 0, *row.layers - 1)));
  std::iota(experts.dense_layers.begin(), experts.dense_layers.end(), 0);
}

// A further token is predicted by one more block and the head once more. Both are here: the block, and a vocabulary that is as much larger. Its
// embedding is too, which costs memory alone.
void add_prediction_layers(const RunModel& row, MappedModel& mapped) {
  const int64_t more = row.experts ? row.experts->prediction_layers : 0;
  if (more <= 0) return;
  mapped.model.layers += more;
  mapped.model.vocab_size *= 1 + more;
  const bool one = more == 1;
  mapped.notes.push_back(cat(more, one ? " layer that predicts" : " layers that predict", " a further token: as ", more, one ? " block" : " blocks",
                             " and a head of ", mapped.model.vocab_size, " words"));
}

// Every layer has its window, in turn with the others: the first one has it where half of them have.
void set_windows(const RunModel& row, MappedModel& mapped) {
  if (!row.window || row.window->tokens <= 0 || row.window->layers <= 0 || row.window->tokens >= *row.seq) return;
  const int64_t layers = mapped.model.layers, windowed = std::min(row.window->layers, layers);
  if (windowed == layers) {
    mapped.model.sliding_window = row.window->tokens;
    return;
  }
  const arch::BlockSpec whole = arch::usual_block();
  arch::BlockSpec narrow = whole;
  narrow.front().window = row.window->tokens;
  if (2 * windowed == layers) {
    mapped.model.blocks = {narrow, whole};
    return;
  }
  for (int64_t i = 0; i < layers; ++i) {
    const bool has = (i + 1) * windowed / layers != i * windowed / layers;
    mapped.model.blocks.push_back(has ? narrow : whole);
  }
}

// As the parameters that the row prints say it, where one of the two is much nearer.
void tie(const RunModel& row, arch::ModelConfig& model) {
  model.tied = model.family == arch::Family::kGpt2;
  if (!row.params || !(*row.params > 0) || model.has_experts()) return;
  const double embedding = static_cast<double>(model.vocab_size) * static_cast<double>(model.hidden);
  const double tied = static_cast<double>(arch::num_parameters(model)) - (model.tied ? 0 : embedding);
  const double off_tied = std::abs(tied - *row.params), off_untied = std::abs(tied + embedding - *row.params);
  if (4 * off_tied < off_untied) model.tied = true;
  if (4 * off_untied < off_tied) model.tied = false;
}

arch::ModelConfig plain_model(const RunModel& row, const Sizes& of) {
  const bool gated = of.matrices == 3, latent = row.latent.has_value();
  const bool grouped = row.kv_heads && *row.kv_heads != *row.heads;
  // A squared ReLU came with rotary positions (Nemotron-4).
  const bool relu = row.activation.find("relu") != std::string::npos;
  arch::ModelConfig model;
  model.family = gated || grouped || latent || relu || row.experts ? arch::Family::kLlama : arch::Family::kGpt2;
  const arch::FamilyTraits& traits = model.traits();
  model.qkv_bias = traits.qkv_bias;
  model.out_bias = traits.out_bias;
  model.mlp_bias = traits.mlp_bias;
  model.qk_norm = traits.qk_norm;
  model.activation = gated || row.experts ? arch::Activation::kSwiGlu : relu ? arch::Activation::kRelu2 : arch::Activation::kGeluTanh;
  model.layers = *row.layers;
  model.hidden = *row.hidden;
  model.heads = *row.heads;
  model.kv_heads = latent ? *row.heads : row.kv_heads.value_or(*row.heads);
  model.head_size = static_cast<int64_t>(of.head);
  model.ffn = row.ffn.value_or(row.experts ? row.experts->ffn : 0);
  model.vocab_size = *row.vocab;
  model.max_seq_len = *row.seq;
  if (latent) {
    const RunModel::Latent& from = *row.latent;
    model.latent = {.q_rank = from.q_rank, .kv_rank = from.kv_rank, .nope = from.nope, .rope = from.rope, .value = from.value};
    model.head_size = model.latent.head();
  }
  return model;
}

}  // namespace

RunFlops flops_of_token(const RunModel& model) {
  const Sizes of = sizes_of(model);
  const double rest = of.layers * projections(model, of) + feed_forwards(model, of) + of.hidden * of.vocab;
  const auto all = [&](double seen) {
    const double windowed = model.window && model.window->tokens > 0 ? std::min(of.layers, static_cast<double>(model.window->layers)) : 0;
    const double narrow = model.window ? std::min(static_cast<double>(model.window->tokens), seen) : seen;
    return 6 * (rest + (of.layers - windowed) * core(model, of, seen) + windowed * core(model, of, narrow));
  };
  return {.causal = all(of.seq / 2), .noncausal = all(of.seq)};
}

MappedModel model_of(const PublishedRun& run) {
  const RunModel& row = run.model;
  const Sizes of = sizes_of(row);
  MappedModel mapped{.model = plain_model(row, of)};
  if (row.experts) set_experts(row, mapped);
  set_windows(row, mapped);
  tie(row, mapped.model);
  add_prediction_layers(row, mapped);
  const std::vector<std::string> problems = arch::size_problems(mapped.model);
  if (!problems.empty()) refuse(cat("the sizes of the model contradict each other: ", join(problems, "; ")));
  return mapped;
}

}  // namespace lockstep::plan
