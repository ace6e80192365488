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

// Reads outputs of a parameter that lie side by side, `count` from `first`, and of them the columns of the box.
class OutputReader {
 public:
  OutputReader(const HfModel::Source& source, const Box& box) : source_(source), box_(box) {}

  // to [count, columns], [count] of a vector. Columns from `column` on: as many as `to` has.
  void read(int64_t first, int64_t column, const at::Tensor& to) const {
    const SafetensorsEntry& entry = *source_.stored.entry;
    const int64_t count = to.size(0), matrix = source_.matrix;
    const bool vector = source_.shape.size() == 1;
    if (vector && entry.shape.size() == 2) return read_box(file(), entry, {{matrix, first}, {1, count}}, false, to.unsqueeze(0));
    if (vector) return read_box(file(), entry, {{first}, {count}}, false, to);
    const int64_t columns = to.size(1), inputs = entry.shape[entry.shape.size() - 2];
    if (source_.transposed) return read_box(file(), entry, {{matrix * inputs + column, first}, {columns, count}}, true, to);
    read_box(file(), entry, {{first, column}, {count, columns}}, false, to);
  }

  // The rows of the box, run by run.
  void read_runs(const at::Tensor& to) const {
    const arch::HfPart& part = source_;
    for (int64_t row = box_.offset[0], done = 0; done < box_.shape[0];) {
      const int64_t within = row % part.run, count = std::min(part.run - within, box_.shape[0] - done);
      read(part.row + row / part.run * part.step + within, first_column(), to.narrow(0, done, count));
      row += count, done += count;
    }
  }

  // Rows that lie one by one: with what is between them, some columns at a time.
  void read_single_rows(const at::Tensor& to) const {
    const arch::HfPart& part = source_;
    const int64_t span = (box_.shape[0] - 1) * part.step + 1, first = part.row + box_.offset[0] * part.step;
    const auto options = at::TensorOptions().dtype(scalar_type(source_.stored.entry->dtype).value());
    const auto every = [&](const at::Tensor& all) { return all.slice(0, 0, span, part.step); };
    if (to.dim() == 1) {
      const at::Tensor all = at::empty({span}, options);
      read(first, 0, all);
      to.copy_(every(all));
      return;
    }
    const int64_t columns = std::max<int64_t>(1, kHeldBytes / (span * static_cast<int64_t>(options.dtype().itemsize())));
    for (int64_t column = 0; column < to.size(1); column += columns) {
      const at::Tensor all = at::empty({span, std::min(columns, to.size(1) - column)}, options);
      read(first, first_column() + column, all);
      to.narrow(1, column, all.size(1)).copy_(every(all));
    }
  }

  int64_t first_column() const { return box_.offset.size() > 1 ? box_.offset[1] : 0; }

 private:
  static constexpr int64_t kHeldBytes = int64_t{4} << 20;
  const SafetensorsFile& file() const { return *source_.stored.file; }

  const HfModel::Source& source_;
  const Box& box_;
};

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
      parameters_[part.name] = {part, found->second, tensor.transposed};
    stored.erase(found);
  }
  const auto head = stored.find(std::string(arch::hf_head_name(model.family)));
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
  if (to.numel() > 0) {
    const OutputReader reader(source, box);
    if (source.run == 0) reader.read(source.row + box.offset[0], reader.first_column(), to);
    else if (source.run == 1) reader.read_single_rows(to);
    else reader.read_runs(to);
  }
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
