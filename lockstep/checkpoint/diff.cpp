#include "lockstep/checkpoint/diff.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/error.h"
#include "lockstep/base/source.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/checkpoint/hf_model.h"
#include "lockstep/checkpoint/step_model.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunk = int64_t{1} << 20;  // elements compared together

struct Stored {
  std::string dtype;
  Sizes shape;
};

// One side.
class Side {
 public:
  virtual ~Side() = default;
  virtual std::string what() const = 0;
  virtual const std::map<std::string, Stored>& tensors() const = 0;
  virtual void read(const std::string& name, const Box& box, const at::Tensor& to) = 0;
};

class HfSide : public Side {
 public:
  explicit HfSide(const fs::path& directory) : model_(directory, arch::load_hf_config(directory).model) {
    for (const auto& [name, source] : model_.parameters())
      tensors_[name] = {std::string(source.stored.entry->dtype), source.shape};
  }
  std::string what() const override { return cat(kHfPrefix, model_.directory().path().string()); }
  const std::map<std::string, Stored>& tensors() const override { return tensors_; }
  void read(const std::string& name, const Box& box, const at::Tensor& to) override { model_.read(name, box, to); }

 private:
  HfModel model_;
  std::map<std::string, Stored> tensors_;
};

class StepSide : public Side {
 public:
  explicit StepSide(const fs::path& step) : model_(step) {
    for (const arch::ParamSpec& spec : arch::param_table(model_.model()))
      tensors_[spec.name] = {model_.find(spec.name).dtype, spec.shape};
  }
  std::string what() const override { return model_.path().string(); }
  const std::map<std::string, Stored>& tensors() const override { return tensors_; }
  void read(const std::string& name, const Box& box, const at::Tensor& to) override { model_.read_box(name, box, to); }

 private:
  StepModel model_;
  std::map<std::string, Stored> tensors_;
};

std::unique_ptr<Side> open(const std::string& path) {
  if (names_hf_model(path)) return std::make_unique<HfSide>(source_folder(path));
  return std::make_unique<StepSide>(find_step(path));
}

void compare_values(const double* a, const double* b, int64_t count, TensorDifference* difference) {
  for (int64_t i = 0; i < count; ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double distance = std::abs(a[i] - b[i]);
    const bool first = difference->elements++ == 0;
    if (!first && !(distance > difference->largest) && !std::isnan(distance)) continue;
    if (!first && std::isnan(difference->largest)) continue;
    difference->largest = distance;
    difference->value_a = a[i];
    difference->value_b = b[i];
  }
}

void compare_tensor(Side& a, Side& b, const std::string& name, const Sizes& shape, TensorDifference* difference) {
  const int64_t columns = shape.size() == 2 ? shape[1] : 1;
  const int64_t rows = std::max<int64_t>(1, kChunk / columns);
  for (int64_t row = 0; row < shape[0]; row += rows) {
    Box box{Sizes(shape.size(), 0), shape};
    box.offset[0] = row;
    box.shape[0] = std::min(rows, shape[0] - row);
    const auto options = at::TensorOptions().dtype(at::kDouble);
    const at::Tensor left = at::empty(box.shape, options), right = at::empty(box.shape, options);
    a.read(name, box, left);
    b.read(name, box, right);
    compare_values(left.const_data_ptr<double>(), right.const_data_ptr<double>(), left.numel(), difference);
  }
}

OrderedJson number_json(double value) {
  return std::isfinite(value) ? OrderedJson(value) : OrderedJson(number_text(value));
}

std::string line_of(const TensorDifference& tensor) {
  if (tensor.shape_a.empty()) return cat(tensor.name, "   only in B: ", tensor.dtype_b, " ", shape_text(tensor.shape_b));
  if (tensor.shape_b.empty()) return cat(tensor.name, "   only in A: ", tensor.dtype_a, " ", shape_text(tensor.shape_a));
  if (tensor.shape_a != tensor.shape_b)
    return cat(tensor.name, "   ", shape_text(tensor.shape_a), " and ", shape_text(tensor.shape_b));
  std::string text = cat(tensor.name, "   ", tensor.dtype_a, tensor.dtype_a == tensor.dtype_b ? "" : " and " + tensor.dtype_b);
  if (tensor.elements == 0) return text + ", equal values";
  const std::string most = std::isnan(tensor.largest) ? "one of them not a number" : "at most by " + number_text(tensor.largest);
  return cat(text, ", ", tensor.elements, " of ", volume(tensor.shape_a), " values differ, ", most, " (", number_text(tensor.value_a), " and ", number_text(tensor.value_b), ")");
}

}  // namespace

bool ModelDiff::equal_values() const {
  return std::all_of(different.begin(), different.end(), [](const TensorDifference& t) { return t.elements == 0; });
}

ModelDiff diff_models(const std::string& path_a, const std::string& path_b) {
  const auto a = open(path_a), b = open(path_b);
  ModelDiff diff{.a = a->what(), .b = b->what()};
  std::set<std::string> names;
  for (const auto* side : {a.get(), b.get()}) {
    for (const auto& [name, stored] : side->tensors()) names.insert(name);
  }
  for (const std::string& name : names) {
    TensorDifference difference{.name = name, .shape_a = {}, .shape_b = {}, .dtype_a = {}, .dtype_b = {}};
    const auto in_a = a->tensors().find(name), in_b = b->tensors().find(name);
    if (in_a != a->tensors().end()) std::tie(difference.dtype_a, difference.shape_a) = std::tie(in_a->second.dtype, in_a->second.shape);
    if (in_b != b->tensors().end()) std::tie(difference.dtype_b, difference.shape_b) = std::tie(in_b->second.dtype, in_b->second.shape);
    if (difference.shape_a != difference.shape_b) {
      difference.elements = -1;
    } else {
      ++diff.tensors;
      diff.elements += volume(difference.shape_a);
      compare_tensor(*a, *b, name, difference.shape_a, &difference);
    }
    if (difference.elements != 0 || difference.dtype_a != difference.dtype_b) diff.different.push_back(difference);
  }
  return diff;
}

std::string diff_text(const ModelDiff& diff) {
  std::string text = cat("A  ", diff.a, "\nB  ", diff.b, "\n", diff.tensors, " tensors of ",
                         format_count(static_cast<double>(diff.elements)), " values in both: ",
                         diff.different.empty() ? "all equal" : diff.equal_values() ? "equal values" : "they differ", "\n");
  for (const TensorDifference& tensor : diff.different) text += cat("  ", line_of(tensor), "\n");
  return text;
}

OrderedJson diff_json(const ModelDiff& diff) {
  OrderedJson tensors = OrderedJson::array();
  for (const TensorDifference& t : diff.different) {
    tensors.push_back({{"name", t.name},
                       {"shape_a", t.shape_a},
                       {"shape_b", t.shape_b},
                       {"dtype_a", t.dtype_a},
                       {"dtype_b", t.dtype_b},
                       {"elements", t.elements},
                       {"largest", number_json(t.largest)},
                       {"value_a", number_json(t.value_a)},
                       {"value_b", number_json(t.value_b)}});
  }
  return {{"equal", diff.equal_values()}, {"a", diff.a}, {"b", diff.b}, {"tensors", diff.tensors},
          {"elements", diff.elements},    {"different", std::move(tensors)}};
}

}  // namespace lockstep::checkpoint
