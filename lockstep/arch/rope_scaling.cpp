// What YaRN scales beside frequencies (Peng et al. 2023, section 3.4; DeepSeek-AI 2024 for mscale_all_dim).
#include <cmath>

#include "lockstep/arch/model_config.h"

namespace lockstep::arch {
namespace {

double mscale_of(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

}  // namespace

double rope_attention_factor(const RopeScaling& scaling) {
  if (scaling.kind != RopeScaling::Kind::kYarn) return 1;
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  if (scaling.mscale > 0 && scaling.mscale_all_dim > 0)
    return mscale_of(scaling.factor, scaling.mscale) / mscale_of(scaling.factor, scaling.mscale_all_dim);
  return mscale_of(scaling.factor, 1);
}

double latent_score_scale(const ModelConfig& model) {
  const double scale = 1 / std::sqrt(static_cast<double>(model.latent.head()));
  const RopeScaling& scaling = model.rope_scaling;
  // transformers takes mscale_all_dim of any scaling; only yarn's files have one.
  if (scaling.kind != RopeScaling::Kind::kYarn || scaling.mscale_all_dim == 0) return scale;
  const double mscale = mscale_of(scaling.factor, scaling.mscale_all_dim);
  return scale * mscale * mscale;
}

}  // namespace lockstep::arch
