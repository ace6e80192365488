#include "lockstep/checkpoint/hf_model.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "lockstep/arch/hf_config.h"
#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/box_reader.h"
#include "lockstep/checkpoint/dtype.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShown = 5;  // shapes that differ, and names nobody asked for
constexpr size_t kShownMissing = 1000;
constexpr const char* kEmbedding = "embed.tokens.weight";
constexpr std::array<std::string_view, 4> kFloats = {"F32", "BF16", "F16", "F64"};

// What is wrong with a directory's tensors, as one message.
class Findings {
 public:
  void missing(const std::string& name) { missing_.push_back(name); }
  void unexpected(const std::string& name) { unexpected_.push_back(name); }
  void different(const std::string& line) { different_.push_back(line); }

  void throw_if_any(const fs::path& directory, const arch::ModelConfig& model) const {
    std::string text = section("missing", missing_, kShownMissing) + section("of another shape or dtype", different_, kShown) +
                       section("unexpected", unexpected_, kShown);
    if (text.empty()) return;
    throw DataError({.code = "LS1324",
                     .what = cat("the tensors of ", directory.string(), " are not those of its model, ",
                                 arch::describe(model), text),
                     .way_out = "config.json and weights must be of one model, of a family that docs/huggingface.md lists"});
  }

 private:
  static std::string section(std::string_view title, const std::vector<std::string>& lines, size_t shown) {
    if (lines.empty()) return "";
    std::string text = cat("\n  ", lines.size(), lines.size() == 1 ? " tensor is " : " tensors are ", title, ":");
    for (size_t i = 0; i < std::min(shown, lines.size()); ++i) text += cat("\n    ", lines[i]);
    if (lines.size() > shown) text += cat("\n    (first ", shown, " of ", lines.size(), " shown)");
    return text;
  }

  std::vector<std::string> missing_, different_, unexpected_;
};

bool is_float(std::string_view dtype) {
  return std::find(kFloats.begin(), kFloats.end(), dtype) != kFloats.end();
}

// The box in the stored tensor.
Box stored_box(const HfModel::Source& source, Box box) {
  if (!box.offset.empty()) box.offset[0] += source.row;
  if (source.transposed) {
    std::reverse(box.offset.begin(), box.offset.end());
    std::reverse(box.shape.begin(), box.shape.end());
  }
  return box;
}

// Of the config.json beside the weights. Who has weights alone has no further layers.
int64_t further_layers(const HfDirectory& directory, const arch::ModelConfig& model) {
  if (!model.traits().latent || !fs::is_regular_file(directory.path() / arch::kHfConfigName)) return 0;
  return arch::load_hf_config(directory.path()).further_layers;
}

}  // namespace

HfModel::HfModel(const fs::path& directory, const arch::ModelConfig& model) : directory_(directory) {
  std::map<std::string, HfDirectory::Stored> stored;  // by canonical name
  Findings findings;
  arch::HfForm form = arch::HfForm::kUsual;
  const int64_t further = further_layers(directory_, model);
  for (const auto& [name, place] : directory_.tensors()) {
    std::string canonical = arch::canonical_hf_name(model.family, name);
    if (arch::is_stacked_hf_name(canonical)) form = arch::HfForm::kStacked;
    if (arch::is_ignored_hf_name(model.family, canonical) || arch::is_further_hf_layer(model, further, canonical)) continue;
    if (!stored.emplace(std::move(canonical), place).second) findings.unexpected(cat(name, "   stored under two names"));
  }
  for (const arch::HfTensor& tensor : arch::hf_tensors(model, form)) {
    const auto found = stored.find(tensor.name);
    if (found == stored.end()) {
      findings.missing(tensor.name);
      continue;
    }
    const SafetensorsEntry& entry = *found->second.entry;
    if (entry.shape != tensor.shape) {
      findings.different(cat(tensor.name, "   file ", shape_text(entry.shape), "   model ", shape_text(tensor.shape)));
    } else if (!is_float(entry.dtype)) {
      findings.different(cat(tensor.name, "   file ", entry.dtype, "   model ", join({kFloats.begin(), kFloats.end()}, " or ")));
    }
    for (const arch::HfPart& part : tensor.parts)
      parameters_[part.name] = {found->second, tensor.transposed, part.shape, part.row};
    stored.erase(found);
  }
  const auto head = stored.find(std::string(arch::kHfHeadName));
  if (model.tied && head != stored.end()) {
    tied_head_ = head->second;
    const auto embedding = parameters_.find(kEmbedding);
    if (embedding != parameters_.end() && (tied_head_.entry->shape != embedding->second.shape ||
                                           tied_head_.entry->dtype != embedding->second.stored.entry->dtype))
      findings.different(cat(head->first, "   file ", tied_head_.entry->dtype, " ", shape_text(tied_head_.entry->shape),
                             "   model: tied to the embedding, ", shape_text(embedding->second.shape)));
    stored.erase(head);
  }
  for (const auto& [name, place] : stored) findings.unexpected(place.entry->name);
  findings.throw_if_any(directory_.path(), model);
}

void HfModel::read(const std::string& name, const Box& box, const at::Tensor& to) const {
  const auto found = parameters_.find(name);
  LOCKSTEP_CHECK(found != parameters_.end(), "no parameter ", name);
  const Source& source = found->second;
  LOCKSTEP_CHECK(to.numel() == 0 || lies_in(box, source.shape), name, " ", shape_text(source.shape), " at ",
                 shape_text(box.offset));
  const SafetensorsEntry& entry = *source.stored.entry;
  read_box(*source.stored.file, entry, stored_box(source, box), source.transposed, to);
  if (name == kEmbedding && tied_head_.file != nullptr && to.numel() > 0) check_tied_head(source, box);
}

void HfModel::check_tied_head(const Source& source, const Box& box) const {
  const SafetensorsEntry& entry = *source.stored.entry;
  constexpr int64_t kRows = 1024;
  for (int64_t row = 0; row < box.shape[0]; row += kRows) {
    const Box part = {{box.offset[0] + row, box.offset[1]}, {std::min(kRows, box.shape[0] - row), box.shape[1]}};
    const auto options = at::TensorOptions().dtype(scalar_type(entry.dtype).value());
    const at::Tensor embedding = at::empty(part.shape, options), head = at::empty(part.shape, options);
    read_box(*source.stored.file, entry, part, false, embedding);
    read_box(*tied_head_.file, *tied_head_.entry, part, false, head);
    if (std::memcmp(embedding.const_data_ptr(), head.const_data_ptr(), embedding.nbytes()) == 0) continue;
    throw DataError(
        {.code = "LS1328",
         .what = cat(directory_.path().string(), ": config.json says that head and embedding are one tensor, but ",
                     entry.name, " and ", tied_head_.entry->name, " differ in rows ", part.offset[0], " to ",
                     part.offset[0] + part.shape[0] - 1),
         .way_out = "\"tie_word_embeddings\": false in its config.json keeps both"});
  }
}

}  // namespace lockstep::checkpoint
