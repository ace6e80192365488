#include "lockstep/model/model.h"

#include <ATen/Parallel.h>

#include <algorithm>

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

void initial_values(const arch::ParamSpec& spec, uint64_t seed, int64_t first, std::span<float> out) {
  if (spec.init != arch::Init::kNormal) {
    std::fill(out.begin(), out.end(), spec.init == arch::Init::kOnes ? 1.0f : 0.0f);
    return;
  }
  const RandomStream stream(seed, cat("init/", spec.name));
  const float std = static_cast<float>(spec.init_std);
  at::parallel_for(0, static_cast<int64_t>(out.size()), /*grain_size=*/65536, [&](int64_t begin, int64_t end) {
    const std::span<float> part = out.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    stream.normal(static_cast<uint64_t>(first + begin), part);
    for (float& value : part) value *= std;
  });
}

}  // namespace lockstep::model
