#include "lockstep/arch/hf_names.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <span>
#include <system_error>
#include <utility>

#include "lockstep/arch/hf_config_families.h"
#include "lockstep/arch/hf_name_table.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {
namespace {

// What the form of a tensor makes of its parts, which lie behind each other so far. `experts`, `head_size`: of the model.
void arrange(HfStored form, int64_t experts, int64_t head_size, HfTensor& tensor) {
  std::vector<int64_t>& shape = tensor.shape;
  const int64_t parts = std::ssize(tensor.parts);
  if (form == HfStored::kStacked) shape = {experts, shape[0] / experts, shape[1]};
  if (form == HfStored::kFilter && shape.size() == 2) shape = {shape[0], 1, shape[1]};
  if (form == HfStored::kByHeads)
    for (int64_t i = 0; i < parts; ++i) {
      HfPart& part = tensor.parts[static_cast<size_t>(i)];
      part.row = i * head_size, part.run = head_size, part.step = parts * head_size;
    }
  const bool turned = form == HfStored::kTurnedStack;
  if (!turned && form != HfStored::kBiasStack) return;
  const int64_t each = parts / experts, outputs = shape[0] / experts;
  tensor.transposed = turned;
  shape = turned ? std::vector{experts, shape[1], outputs} : std::vector{experts, outputs};
  for (int64_t i = 0; i < parts; ++i) {
    HfPart& part = tensor.parts[static_cast<size_t>(i)];
    part.matrix = i / each, part.row = i % each;
    if (each > 1) part.run = 1, part.step = each;
  }
}

// Behind what the tensor has already.
void add_part(HfPart part, HfTensor& tensor) {
  int64_t& outputs = tensor.transposed ? tensor.shape.back() : tensor.shape.front();
  if (tensor.parts.empty()) outputs = 0;
  part.row = outputs;
  outputs += part.shape.front();
  tensor.parts.push_back(std::move(part));
}

// Makes the tensors of one layer after the other.
class Tensors {
 public:
  Tensors(const ModelConfig& model, const HfNameTable& names) : model_(model), names_(names) {
    for (ParamSpec& spec : param_table(model)) left_[spec.name] = std::move(spec.shape);
  }

  void add_layer(const LayerSpec& layer, std::span<const std::span<const HfRow>> all) {
    first_of_layer_ = std::ssize(tensors_);
    for (const std::span<const HfRow> rows : all)
      for (size_t i = 0; i < rows.size();) {
        const size_t end = end_of_experts(rows, i);
        if (end > i) add_experts(layer, rows.subspan(i, end - i));
        else add_row(layer, rows[i], "");
        i = std::max(end, i + 1);
      }
    for (auto tensor = tensors_.begin() + first_of_layer_; tensor != tensors_.end(); ++tensor)
      arrange(forms_.at(tensor->name), model_.experts.count, model_.head_size, *tensor);
  }

  std::vector<HfTensor> finish() {
    if (!left_.empty())
      throw ConfigError({.code = "LS1123",
                         .what = cat("transformers' ", hf_family(model_.family).language_model, " has no tensor for ", left_.begin()->first),
                         .way_out = "leave out what adds it to the model, or take a family that has it"});
    return std::move(tensors_);
  }

 private:
  // The rows of experts that begin at `first` end there.
  static size_t end_of_experts(std::span<const HfRow> rows, size_t first) {
    while (first < rows.size() && rows[first].ours.find('#') != std::string_view::npos) ++first;
    return first;
  }

  static std::string with_expert(std::string_view name, std::string_view expert) {
    const size_t place = name.find('#');
    return place == std::string_view::npos ? std::string(name) : cat(name.substr(0, place), expert, name.substr(place + 1));
  }

  void add_experts(const LayerSpec& layer, std::span<const HfRow> rows) {
    for (int64_t expert = 0; expert < model_.experts.count; ++expert)
      for (const HfRow& row : rows) add_row(layer, row, std::to_string(expert));
  }

  void add_row(const LayerSpec& layer, const HfRow& row, const std::string& expert) {
    if (row.layer != layer.kind) return;
    const bool bias_alone = row.stored == HfStored::kBareBias || row.stored == HfStored::kBiasStack;
    const bool weight_alone = row.stored == HfStored::kAlone || row.stored == HfStored::kBare || row.stored == HfStored::kStacked ||
                              row.stored == HfStored::kTurnedStack;
    if (!bias_alone) add(layer, row, ".weight", expert);
    if (!weight_alone) add(layer, row, ".bias", expert);
  }

  static bool is_bare(HfStored stored) {
    return stored == HfStored::kStacked || stored == HfStored::kTurnedStack || stored == HfStored::kBiasStack || stored == HfStored::kBare ||
           stored == HfStored::kBareBias;
  }

  std::string their_name(const HfRow& row, const std::string& expert) const {
    std::string name = with_expert(row.theirs, expert);
    return name.starts_with('@') ? cat(names_.mixer, name.substr(1)) : name;
  }

  void add(const LayerSpec& layer, const HfRow& row, std::string_view kind, const std::string& expert) {
    const auto ours = left_.extract(cat(layer.name, row.ours.empty() ? "" : ".", with_expert(row.ours, expert), kind));
    if (ours.empty()) return;
    const std::vector<int64_t>& shape = ours.mapped();
    const std::string block = row.layer == LayerKind::kBlock ? cat(names_.blocks, layer.index - 1, ".") : "";
    const std::string name =
        canonical_hf_name(model_.family, cat(block, their_name(row, expert), is_bare(row.stored) ? std::string_view() : kind));
    forms_[name] = row.stored;
    auto tensor = std::ranges::find(tensors_.begin() + first_of_layer_, tensors_.end(), name, &HfTensor::name);
    if (tensor == tensors_.end()) {
      const bool transposed = row.stored == HfStored::kTransposed && shape.size() == 2;
      tensor = tensors_.insert(tensor, HfTensor{.name = name, .shape = shape, .transposed = transposed, .parts = {},
                                                .fp32 = row.stored == HfStored::kBareBias});
      if (transposed) std::ranges::reverse(tensor->shape);
    }
    add_part({.name = ours.key(), .shape = shape}, *tensor);
  }

  const ModelConfig& model_;
  const HfNameTable& names_;
  std::map<std::string, std::vector<int64_t>> left_;  // shapes of our parameters that have no tensor yet
  std::vector<HfTensor> tensors_;
  std::ptrdiff_t first_of_layer_ = 0;
  std::map<std::string, HfStored> forms_;  // of their tensors
};

}  // namespace

std::vector<HfTensor> hf_tensors(const ModelConfig& model, HfForm form) {
  const HfNameTable& names = hf_name_table(model.family);
  const auto& rows = form == HfForm::kStacked && !names.stacked_rows.empty() ? names.stacked_rows : names.rows;
  Tensors tensors(model, names);
  for (const LayerSpec& layer : layer_table(model)) tensors.add_layer(layer, rows);
  return tensors.finish();
}

bool is_stacked_hf_name(std::string_view name) {
  return std::ranges::any_of(stacked_expert_rows(), [&](const HfRow& row) { return row.stored == HfStored::kStacked && name.ends_with(cat(".", row.theirs)); });
}

std::string_view hf_head_name(Family family) { return hf_name_table(family).head; }

std::string canonical_hf_name(Family family, std::string_view name) {
  const HfNameTable& names = hf_name_table(family);
  if (name == names.head || name == "lm_head.weight") return std::string(names.head);
  if (name.starts_with(names.prefix)) return std::string(name);
  if (!names.other_prefix.empty() && name.starts_with(names.other_prefix)) name.remove_prefix(names.other_prefix.size());
  return cat(names.prefix, name);
}

bool is_ignored_hf_name(Family family, std::string_view canonical_name) {
  const HfNameTable& names = hf_name_table(family);
  if (!canonical_name.starts_with(names.prefix)) return false;
  std::string_view name = canonical_name.substr(names.prefix.size());
  if (name.starts_with(names.blocks)) {
    name.remove_prefix(names.blocks.size());
    const size_t number = std::min(name.find_first_not_of("0123456789"), name.size());
    if (number == 0) return false;
    name.remove_prefix(number);
  }
  return std::ranges::find(names.ignored, name) != names.ignored.end();
}

bool is_further_hf_layer(const ModelConfig& model, int64_t further, std::string_view canonical_name) {
  const HfNameTable& names = hf_name_table(model.family);
  const std::string blocks = cat(names.prefix, names.blocks);
  if (further == 0 || !canonical_name.starts_with(blocks)) return false;
  const std::string_view name = canonical_name.substr(blocks.size());
  int64_t block = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), block);
  return error == std::errc() && end != name.data() && block >= model.layers && block - model.layers < further;
}

}  // namespace lockstep::arch
