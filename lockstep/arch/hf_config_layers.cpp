// What the layers of a config.json are: their branches, windows and rotation.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "lockstep/arch/hf_reading.h"

namespace lockstep::arch {
namespace {

constexpr std::string_view kSliding = "sliding_attention", kFull = "full_attention", kLinear = "linear_attention", kMlp = "mlp";

class LayersReader {
 public:
  explicit LayersReader(HfReading& reading) : r_(reading), keys_(reading.keys), layers_(static_cast<size_t>(reading.model().layers)) {}

  void run() {
    turned_.assign(layers_, r_.family->rope != HfRope::kNone || r_.model().traits().learned_positions);
    if (r_.family->window == HfWindow::kWithoutRope) layers_without_rope();
    windows();
    const std::vector<std::string> mixers = mixers_of_layers();
    std::vector<BlockSpec> blocks;
    for (size_t i = 0; i < layers_; ++i) blocks.push_back(block(i, mixers[i]));
    set_layer_blocks(r_.model(), std::move(blocks));
  }

 private:
  bool flag(const char* key) const { return keys_.flag(key, false); }

  void layers_without_rope() {
    if (const auto listed = keys_.flags("no_rope_layers", r_.model().layers)) {
      turned_ = *listed;
      return;
    }
    const auto every = static_cast<size_t>(keys_.size("no_rope_layer_interval", 4));
    for (size_t i = 0; i < layers_; ++i) turned_[i] = (i + 1) % every != 0;
  }

  void windows() {
    sliding_.assign(layers_, false);
    if (!r_.family->default_window) return;
    const bool off = keys_.json().contains("sliding_window") && !keys_.has("sliding_window");
    window_ = off ? 0 : keys_.size("sliding_window", r_.family->default_window);
    switch (r_.family->window) {
      case HfWindow::kEvery:
        sliding_.assign(layers_, window_ > 0);
        break;
      case HfWindow::kFlagged:
        sliding_.assign(layers_, window_ > 0 && flag("use_sliding_window"));
        break;
      case HfWindow::kByLayer:
        if (window_ > 0) by_layer();
        break;
      case HfWindow::kByKind:
        by_kind();
        break;
      case HfWindow::kWithoutRope:
        without_rope();
        break;
    }
  }

  // Where layer_types names them; false where it does not.
  bool named() {
    const auto types = keys_.words("layer_types", r_.model().layers);
    if (!types) return false;
    for (size_t i = 0; i < layers_; ++i) {
      sliding_[i] = (*types)[i] == kSliding;
      if (sliding_[i] || (*types)[i] == kFull) continue;
      r_.unsupported(cat("layer_types: \"", (*types)[i], "\": of ", kFull, ", ", kSliding));
      break;
    }
    return true;
  }

  void require_flag() {
    if (std::ranges::count(sliding_, true) > 0 && !flag("use_sliding_window"))
      r_.problem(cat("layer_types has ", kSliding, ", but use_sliding_window is not true"));
  }

  void by_layer() {
    if (named()) return require_flag();
    const int64_t first = flag("use_sliding_window") ? keys_.size("max_window_layers", 28, /*least=*/0) : r_.model().layers;
    for (size_t i = 0; i < layers_; ++i) sliding_[i] = std::cmp_greater_equal(i, first);
  }

  void by_kind() {
    if (!named()) {
      const int64_t usual = r_.family->full_every;
      const auto every = static_cast<size_t>(r_.model_is(Family::kGemma3) ? keys_.size("sliding_window_pattern", usual) : usual);
      for (size_t i = 0; i < layers_; ++i) sliding_[i] = (i + 1) % every != 0;
    }
    require_window();
  }

  void without_rope() {
    const bool used = flag("use_sliding_window");
    if (named()) return require_flag(), require_window();
    for (size_t i = 0; i < layers_; ++i) sliding_[i] = used && window_ > 0 && !turned_[i];
  }

  void require_window() {
    if (window_ == 0 && std::ranges::count(sliding_, true) > 0) r_.problem("sliding_window is missing, and layers have one");
  }

  std::vector<std::string> mixers_of_layers() {
    const HfBlocks blocks = r_.family->blocks;
    std::vector<std::string> mixers(layers_, std::string(blocks == HfBlocks::kStateSpace || blocks == HfBlocks::kListed || blocks == HfBlocks::kBeside ? kLinear : kFull));
    if (blocks == HfBlocks::kListed)
      for (const int64_t i : keys_.indices("attn_layer_indices", r_.model().layers)) mixers[static_cast<size_t>(i)] = kFull;
    if (blocks == HfBlocks::kOne) mixers = r_.kinds;
    return mixers;
  }

  BlockSpec block(size_t layer, std::string_view mixer) const {
    const HfBlocks kind = r_.family->blocks;
    Branch attention{.kind = "attention", .name = "attention"}, mlp{.kind = "mlp", .name = "mlp"};
    attention.window = sliding_[layer] ? window_ : 0;
    if (!turned_[layer]) attention.rotation = Rotation::kNone;
    else if (sliding_[layer] && r_.read.model.rope_local_theta > 0) attention.rotation = Rotation::kLocal;
    for (Branch* branch : {&attention, &mlp}) {
      branch->norm_before = kind != HfBlocks::kBehind;
      branch->norm_behind = kind == HfBlocks::kBehind || kind == HfBlocks::kBoth;
    }
    mlp.beside = kind == HfBlocks::kParallel && keys_.flag("use_parallel_residual", true);
    const Branch state_space{.kind = std::string(kStateSpace), .name = "ssm"};
    if (kind == HfBlocks::kBeside) {
      attention.beside = true, attention.norm_before = false;
      return {state_space, attention, mlp};
    }
    const Branch& first = mixer == kLinear ? state_space : mixer == kMlp ? mlp : attention;
    if (kind == HfBlocks::kOne || kind == HfBlocks::kStateSpace) return {first};
    return {first, mlp};
  }

  HfReading& r_;
  const HfKeys& keys_;
  const size_t layers_;
  int64_t window_ = 0;  // 0: none
  std::vector<bool> sliding_{}, turned_{};
};

}  // namespace

std::vector<std::string> listed_branches(HfReading& r) {
  constexpr std::array<std::pair<char, std::string_view>, 4> kLetters = {{{'M', kLinear}, {'*', kFull}, {'-', kMlp}, {'E', "moe"}}};
  std::vector<std::string> kinds;
  if (const Json* listed = r.keys.find("layers_block_type")) {
    const int64_t count = listed->is_array() && !listed->empty() ? std::ssize(*listed) : 1;
    kinds = r.keys.words("layers_block_type", count).value_or(std::vector<std::string>{});
  } else {
    for (const char letter : r.keys.text("hybrid_override_pattern", "")) {
      const auto* const found = std::ranges::find(kLetters, letter, &std::pair<char, std::string_view>::first);
      kinds.emplace_back(found == kLetters.end() ? std::string(1, letter) : std::string(found->second));
    }
  }
  if (kinds.empty()) {
    r.problem("layers_block_type, or hybrid_override_pattern, names no layer");
    kinds.emplace_back(kMlp);
  }
  std::string unknown;
  for (std::string& kind : kinds) {
    if (kind == "mamba") kind = kLinear;
    if (kind == "attention") kind = kFull;
    if (kind != kLinear && kind != kFull && kind != kMlp) unknown = kind;
  }
  if (unknown == "moe") r.unsupported("layers_block_type: \"moe\": experts without a gate");
  else if (!unknown.empty()) r.unsupported(cat("layers_block_type: \"", unknown, "\": of ", kLinear, ", ", kFull, ", ", kMlp));
  return kinds;
}

void read_layers(HfReading& reading) { LayersReader(reading).run(); }

namespace {

// The least p of which layer i is as layer i - p: the length without its longest border (Knuth, Morris and Pratt 1977).
size_t period_of(const std::vector<BlockSpec>& layers) {
  std::vector<size_t> border(layers.size() + 1, 0);
  for (size_t i = 1, length = 0; i < layers.size(); ++i) {
    while (length > 0 && layers[i] != layers[length]) length = border[length];
    if (layers[i] == layers[length]) ++length;
    border[i + 1] = length;
  }
  return layers.size() - border.back();
}

}  // namespace

std::vector<BlockSpec> layer_blocks(const ModelConfig& model) {
  std::vector<BlockSpec> layers;
  for (int64_t i = 0; i < model.layers; ++i) {
    BlockSpec& layer = layers.emplace_back(model.blocks.empty() ? usual_block() : model.blocks[static_cast<size_t>(i) % model.blocks.size()]);
    for (Branch& branch : layer)
      if (branch.kind == "attention") branch.window = model.window_of(branch);
  }
  return layers;
}

void set_layer_blocks(ModelConfig& model, std::vector<BlockSpec> layers) {
  std::optional<int64_t> common;
  bool equal = true;
  const auto each_attention = [&](const auto& visit) {
    for (BlockSpec& layer : layers)
      for (Branch& branch : layer)
        if (branch.kind == "attention") visit(branch);
  };
  each_attention([&](const Branch& branch) {
    const int64_t window = branch.window.value_or(0);
    equal = equal && common.value_or(window) == window;
    common = window;
  });
  model.sliding_window = equal ? common.value_or(0) : 0;
  each_attention([&](Branch& branch) {
    if (equal || branch.window == 0) branch.window.reset();
  });
  layers.resize(period_of(layers));
  if (layers.size() == 1 && layers.front() == usual_block()) layers.clear();
  model.blocks = std::move(layers);
}

std::vector<std::string> attention_kinds(const std::vector<BlockSpec>& layers) {
  std::vector<std::string> kinds;
  for (const BlockSpec& layer : layers) {
    const bool sliding = std::ranges::any_of(layer, [](const Branch& branch) { return branch.kind == "attention" && branch.window.value_or(0) > 0; });
    kinds.emplace_back(sliding ? kSliding : kFull);
  }
  return kinds;
}

}  // namespace lockstep::arch
