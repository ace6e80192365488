#include "lockstep/model/model.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/random.h"
#include "lockstep/base/text.h"
#include "lockstep/model/parts.h"

namespace lockstep::model {

std::vector<std::unique_ptr<nn::Layer>> build_layers(const arch::ModelConfig& model, nn::ParameterSource& source,
                                                     const ModelOptions& options) {
  PartsBuilder parts(model, source, options);
  std::vector<std::unique_ptr<nn::Layer>> layers;
  for (const arch::LayerSpec& layer : arch::layer_table(model)) {
    if (!options.layers.empty() && !std::binary_search(options.layers.begin(), options.layers.end(), layer.index)) {
      layers.push_back(nullptr);
      continue;
    }
    switch (layer.kind) {
      case arch::LayerKind::kEmbedding:
        layers.push_back(parts.embedding());
        break;
      case arch::LayerKind::kBlock:
        layers.push_back(parts.block(static_cast<int>(layers.size()) - 1));
        break;
      case arch::LayerKind::kHead:
        layers.push_back(parts.head());
        break;
    }
  }
  return layers;
}

namespace {

// log of numbers that are even within 1 .. 16.
float log_decay(float unit) { return static_cast<float>(std::log(1 + 15 * static_cast<double>(unit))); }

// x with softplus(x) = step, whose logarithm is even within those of 0.001 and 0.1.
float time_step(float unit) {
  constexpr double kLeast = 1e-3, kMost = 1e-1, kFloor = 1e-4;
  const double step = std::max(kFloor, std::exp(std::log(kLeast) + static_cast<double>(unit) * (std::log(kMost) - std::log(kLeast))));
  return static_cast<float>(step + std::log(-std::expm1(-step)));
}

void draw(const arch::ParamSpec& spec, const RandomStream& stream, uint64_t first, std::span<float> out) {
  const auto scale = static_cast<float>(spec.init_std);
  if (spec.init == arch::Init::kNormal) {
    stream.normal(first, out);
    for (float& value : out) value *= scale;
    return;
  }
  stream.uniform(first, out);
  for (float& value : out) {
    if (spec.init == arch::Init::kUniform) value = (2 * value - 1) * scale;
    if (spec.init == arch::Init::kLogDecay) value = log_decay(value);
    if (spec.init == arch::Init::kTimeStep) value = time_step(value);
  }
}

}  // namespace

void initial_values(const arch::ParamSpec& spec, uint64_t seed, int64_t first, std::span<float> out) {
  if (spec.init == arch::Init::kZeros || spec.init == arch::Init::kOnes) {
    std::fill(out.begin(), out.end(), spec.init == arch::Init::kOnes ? 1.0f : 0.0f);
    return;
  }
  const RandomStream stream(seed, cat("init/", spec.name));
  at::parallel_for(0, static_cast<int64_t>(out.size()), /*grain_size=*/65536, [&](int64_t begin, int64_t end) {
    draw(spec, stream, static_cast<uint64_t>(first + begin), out.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  });
}

}  // namespace lockstep::model
