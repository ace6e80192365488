#include "lockstep/plan/time/kernel_seconds.h"

#include <algorithm>

#include "lockstep/plan/time/layer_traffic.h"

namespace lockstep::plan {

using arch::LayerDescription;
using arch::LayerKind;
using arch::Phase;
using arch::Product;
using arch::Step;
using Role = arch::Product::Role;

namespace {

constexpr double kBatchedShare = 0.45;  // of the peak, of batched products in attention (recipe; fits of 2021 have 0.44 to 0.45)

enum class Family { kLinear, kGrouped, kExact, kCore, kScan };

bool is_of(std::string_view name, std::string_view family) {
  return name.starts_with(family) && (name.size() == family.size() || name[family.size()] == '.');
}

// Linears of blocks may be FP8; routers and logits stay in the precision of the run.
Family family_of(std::string_view name) {
  if (is_of(name, "scores") || is_of(name, "mix")) return Family::kCore;
  if (is_of(name, "scan")) return Family::kScan;
  if (name == "experts.gate_up" || name == "experts.down") return Family::kGrouped;
  if (name == "experts.router" || name == "logits") return Family::kExact;
  return Family::kLinear;
}

}  // namespace

KernelTimes& KernelTimes::operator+=(const KernelTimes& other) {
  products += other.products;
  attention += other.attention;
  pointwise += other.pointwise;
  return *this;
}

KernelTimes sum(const PartTimes& parts) {
  KernelTimes all = parts[0];
  all += parts[1];
  return all += parts[2];
}

// One layer.
class KernelFold {
 public:
  KernelFold(const KernelSeconds& seconds, const arch::ModelConfig& model, const arch::LayerSpec& layer, const arch::CostInput& input,
             const LayerDescription& description)
      : stack_(seconds.stack_), device_(seconds.device_), options_(seconds.options_), products_(seconds.products_), model_(model), layer_(layer),
        input_(input), type_(input.element_size == 4 ? ProductType::kFp32 : ProductType::kBf16), description_(description),
        experts_here_(model.has_experts() ? model.experts.count / input.tensor.experts.ep : 1), speed_(seconds.speed_),
        unfused_(stack_.kernels == Kernels::kUnfused || is_unfused_beside_windows()) {}

  LayerKernels fold() {
    LayerKernels kernels{.forward = pass(Phase::kForward),
                         .input = pass(Phase::kInput),
                         .weight = pass(Phase::kWeight),
                         .again = pass(Phase::kRecompute),
                         .restore = {}};
    unfused_backward(kernels);
    add_pointwise(kernels);
    for (size_t i = 0; i < kernels.again.size(); ++i) {
      const double outputs = stack_.recompute_outputs;
      kernels.again[i] = kernels.again[i].scaled(1 - outputs);
      kernels.again[i] += kernels.forward[i].scaled(outputs);
      kernels.restore[i].products = stack_.restore_products * kernels.forward[i].products;
      kernels.restore[i].pointwise = stack_.restore_pointwise * kernels.forward[i].pointwise;
      if (stack_.kernels == Kernels::kUnfused) kernels.restore[i].attention = kernels.forward[i].attention;
    }
    return kernels;
  }

 private:
  bool is_unfused_beside_windows() const {
    if (stack_.unfused_beside_windows <= 0 || layer_.kind != LayerKind::kBlock || arch::window_of_layer(model_, layer_.index) > 0) return false;
    return std::ranges::any_of(arch::first_blocks(model_), [&](int other) { return arch::window_of_layer(model_, other) > 0; });
  }

  // Products of a phase; a part ends where rows leave for experts, and where they come back.
  PartTimes pass(Phase phase) const {
    PartTimes parts;
    size_t part = 0;
    for (const Step& step : description_.steps) {
      if (!step.phases.has(phase)) continue;
      if (step.what == Step::What::kStart) {
        const arch::RowsWay way = arch::rows_way(description_.calls[static_cast<size_t>(step.index)]);
        if (way != arch::RowsWay::kNone) part = way == arch::RowsWay::kToExperts ? 1 : 2;
      }
      if (step.what == Step::What::kProduct) add(description_.products[static_cast<size_t>(step.index)], phase, parts[part]);
    }
    // Weight gradients of a divided layer are the last part's work.
    if (phase == Phase::kWeight && layer_.kind == LayerKind::kBlock) parts = {KernelTimes{}, KernelTimes{}, sum(parts)};
    return parts;
  }

  void add(const Product& product, Phase phase, KernelTimes& times) const {
    const ProductShape shape{.m = product.m, .n = product.n, .k = product.k, .count = product.count};
    switch (family_of(product.name)) {
      case Family::kCore: times.attention += core(product, phase); return;
      case Family::kScan: times.products += scan(shape); return;
      case Family::kExact: times.products += products_.of(shape, type_); return;
      case Family::kGrouped: times.products += linear(grouped(shape, product.role), product.role); return;
      case Family::kLinear: times.products += linear(shape, product.role); return;
    }
  }

  // Rows of each expert that is here.
  ProductShape grouped(ProductShape shape, Role role) const {
    int64_t& rows = role == Role::kWeightGradient ? shape.k : shape.m;
    const double of_expert = static_cast<double>(rows) * options_.imbalance / static_cast<double>(experts_here_);
    rows = std::max<int64_t>(1, static_cast<int64_t>(of_expert + 0.5));
    shape.count = experts_here_;
    return shape;
  }

  double linear(const ProductShape& shape, Role role) const {
    if (options_.linears != Linears::kFp8) return products_.of(shape, type_);
    const double operand = static_cast<double>(shape.m) * static_cast<double>(shape.k) * static_cast<double>(shape.count);
    // The weight gradient reads what the two others have cast.
    return products_.of(shape, ProductType::kFp8, role == Role::kWeightGradient ? 0 : operand);
  }

  double core(const Product& product, Phase phase) const {
    const double keys = static_cast<double>(input_.seq_len), peak = products_.peak(type_);
    if (unfused_) {
      if (phase != Phase::kForward && phase != Phase::kRecompute) return 0;  // unfused_backward()
      const double scores = static_cast<double>(product.m) * keys * static_cast<double>(product.count);
      const double share = stack_.kernels == Kernels::kUnfused ? stack_.attention_forward : kBatchedShare;
      const double multiply = 2 * scores * static_cast<double>(product.k) / (peak * share * speed_);
      // Two launches for each of the two products: scale and mask, softmax.
      return multiply + (product.name == "scores" ? products_.memory(stack_.softmax_bytes * scores) : 0) + 2 * stack_.launch;
    }
    const double ramp = keys / (keys + stack_.attention_ramp) * (product.k <= 64 ? stack_.narrow_heads : 1);
    const double share = phase == Phase::kInput ? stack_.attention_backward : stack_.attention_forward;
    return product.flops() / (peak * share * ramp * speed_);
  }

  // Two products of the same size for each, and twice the passes over scores.
  void unfused_backward(LayerKernels& kernels) const {
    if (!unfused_) return;
    const double slower = stack_.kernels == Kernels::kUnfused ? stack_.attention_forward / stack_.attention_backward : 1;
    for (size_t i = 0; i < kernels.input.size(); ++i) kernels.input[i].attention = 2 * slower * kernels.forward[i].attention;
  }

  // Tokens' operands come from memory and results go there; states stay on chip between chunks (Dao and Gu 2024, section 6).
  double scan(const ProductShape& shape) const {
    const double compute = shape.flops() / (products_.peak(type_) * stack_.product_cap * speed_);
    const double numbers = static_cast<double>(shape.m) * static_cast<double>(shape.k + std::min(shape.n, shape.k)) * static_cast<double>(shape.count);
    return std::max(compute, products_.memory(element_bytes(type_) * numbers)) + stack_.launch;
  }

  double pointwise(double bytes) const { return products_.memory(bytes * stack_.pointwise_factor); }

  void add_pointwise(LayerKernels& kernels) const {
    if (layer_.kind == LayerKind::kHead) {
      kernels.input[0].pointwise += device_.generation == Generation::kCpu ? pointwise(counted_traffic(description_, Phase::kInput))
                                                                          : products_.memory(logit_traffic(model_, input_, stack_.logit_bytes));
      return;
    }
    if (layer_.kind == LayerKind::kEmbedding) {
      const EmbeddingTraffic bytes = embedding_traffic(model_, input_);
      kernels.forward[0].pointwise += products_.memory(bytes.forward);
      kernels.weight[0].pointwise += products_.memory(bytes.backward);
      return;
    }
    const std::array<double, 3> bytes = device_.generation == Generation::kCpu ? counted_block_traffic(description_)
                                                                              : block_traffic(model_, description_, input_, options_.imbalance);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const double seconds = pointwise(bytes[i]);
      kernels.forward[i].pointwise += seconds;
      kernels.again[i].pointwise += seconds;
      kernels.input[i].pointwise += 2 * seconds;
    }
  }

  const Stack& stack_;
  const DeviceKind& device_;
  const EstimateOptions& options_;
  const ProductSeconds& products_;
  const arch::ModelConfig& model_;
  const arch::LayerSpec& layer_;
  const arch::CostInput& input_;
  const ProductType type_;
  const LayerDescription& description_;
  const int64_t experts_here_;
  const double speed_;
  const bool unfused_;
};

KernelSeconds::KernelSeconds(const DeviceKind& device, const Stack& stack, const EstimateOptions& options, double speed)
    : device_(device), stack_(stack), options_(options), products_(device, stack, options.products, speed), speed_(speed) {}

LayerKernels KernelSeconds::of(const arch::ModelConfig& model, const arch::LayerSpec& layer, const arch::CostInput& input) const {
  return of(model, layer, input, arch::describe_layer(model, layer, input));
}

LayerKernels KernelSeconds::of(const arch::ModelConfig& model, const arch::LayerSpec& layer, const arch::CostInput& input, const LayerDescription& description) const {
  return KernelFold(*this, model, layer, input, description).fold();
}

double KernelSeconds::update(double parameters, double flops) const {
  const double memory = products_.memory(stack_.optimizer_bytes * parameters);
  if (flops == 0) return memory;
  const ProductType type = device_.flops_bf16 > 0 ? ProductType::kBf16 : ProductType::kFp32;
  return memory + flops / (products_.peak(type) * stack_.product_cap * speed_);
}

}  // namespace lockstep::plan
