#include "lockstep/checkpoint/hf_export.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/hf_names.h"
#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/dtype.h"
#include "lockstep/checkpoint/hf_directory.h"
#include "lockstep/checkpoint/hf_place.h"
#include "lockstep/checkpoint/safetensors_writer.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// A folder that is removed with what is in it unless it is kept.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const fs::path& path() const { return path_; }
  void keep_as(const fs::path& name) {
    sync_directory(path_);
    fs::rename(path_, name);  // replaces an empty directory
    path_.clear();
    sync_directory(name.parent_path());
  }

 private:
  fs::path path_;
};

struct Shard {
  std::vector<PlannedTensor> tensors{};
  uint64_t bytes = 0;
};

class Exporter {
 public:
  explicit Exporter(const HfExportRequest& request)
      : request_(request), step_(request.step), precise_(request.dtype == at::kFloat) {
    for (arch::HfTensor& tensor : arch::hf_tensors(step_.model())) {
      order_.push_back(tensor.name);
      tensors_[tensor.name] = std::move(tensor);
    }
  }

  HfExportResult run() {
    const fs::path target = target_path();
    TemporaryFolder folder(target.parent_path() / cat(".tmp-", target.filename().string()));
    folder_ = folder.path();
    write_weights();
    write("config.json", config_text());
    for (const auto& [name, path] : request_.files) write(name, read_file(path));
    folder.keep_as(target);
    return std::move(result_);
  }

 private:
  fs::path target_path() const {
    fs::path target = fs::absolute(request_.directory).lexically_normal();
    if (!target.has_filename()) target = target.parent_path();
    std::error_code ignored;
    const fs::file_status status = fs::symlink_status(target, ignored);
    if (fs::exists(status) && !(fs::is_directory(status) && fs::is_empty(target)))
      throw CheckpointError({.code = "LS1330",
                             .what = cat(target.string(), " exists: an export does not write into what is there"),
                             .way_out = "name a new directory"});
    return target;
  }

  at::ScalarType dtype_of_tensor(const arch::HfTensor& tensor) const {
    if (tensor.fp32) return at::kFloat;
    if (request_.dtype) return *request_.dtype;
    return scalar_type(step_.find(tensor.parts.front().name).dtype).value();
  }

  // Cut where the next tensor would make a file too large, as transformers does.
  std::vector<Shard> shards() const {
    std::vector<Shard> shards(1);
    for (const std::string& name : order_) {
      const arch::HfTensor& tensor = tensors_.at(name);
      PlannedTensor planned{name, dtype_of_tensor(tensor), tensor.shape};
      const auto bytes = static_cast<uint64_t>(volume(planned.shape)) * c10::elementSize(planned.dtype);
      if (!shards.back().tensors.empty() && shards.back().bytes + bytes > static_cast<uint64_t>(request_.max_shard_bytes))
        shards.emplace_back();
      shards.back().tensors.push_back(std::move(planned));
      shards.back().bytes += bytes;
    }
    return shards;
  }

  void write_weights() {
    const std::vector<Shard> all = shards();
    std::map<std::string, std::string> file_of;
    for (size_t i = 0; i < all.size(); ++i) {
      const std::string name = all.size() == 1 ? kHfWeights : shard_name(i, all.size());
      const WrittenFile written = write_safetensors(
          folder_ / name, all[i].tensors,
          [&](const PlannedTensor& tensor, const ByteSink& take) { make(tensors_.at(tensor.name), tensor.dtype, take); },
          {{"format", "pt"}}, request_.progress);
      result_.files[name] = written.size;
      result_.tensor_bytes += all[i].bytes;
      for (const PlannedTensor& tensor : all[i].tensors) {
        result_.parameters += volume(tensor.shape);
        file_of[tensor.name] = name;
      }
    }
    if (all.size() == 1) return;
    const Json index = {{"metadata", {{"total_parameters", result_.parameters}, {"total_size", result_.tensor_bytes}}},
                        {"weight_map", file_of}};
    write(kHfIndex, index.dump(2) + "\n");
  }

  static std::string shard_name(size_t index, size_t count) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
    return name;
  }

  // Rows that were saved as they are to be written pass through; anything else is put together in memory first.
  void make(const arch::HfTensor& tensor, at::ScalarType dtype, const ByteSink& take) {
    const bool precise = precise_ || tensor.fp32;
    const bool in_runs = std::all_of(tensor.parts.begin(), tensor.parts.end(),
                                     [&](const auto& part) { return part.run == 0 && step_.is_in_runs(part.name, precise); });
    if (tensor.transposed || !in_runs) {
      const at::Tensor whole = put_together(tensor, dtype);
      take(whole.const_data_ptr(), whole.nbytes());
      return;
    }
    for (const arch::HfPart& part : tensor.parts) {
      step_.scan(part.name, [&](const at::Tensor& rows) {
        const at::Tensor values = rows.scalar_type() == dtype ? rows : space(rows.sizes(), dtype).copy_(rows);
        take(values.const_data_ptr(), values.nbytes());
      }, precise);
    }
  }

  at::Tensor put_together(const arch::HfTensor& tensor, at::ScalarType dtype) {
    const at::Tensor stored = space(tensor.shape, dtype);
    for (const arch::HfPart& part : tensor.parts) {
      const at::Tensor place = hf_place(stored, tensor, part);
      const bool precise = precise_ || tensor.fp32;
      if (part.run == 0) {
        step_.read(part.name, place, precise);
        continue;
      }
      const at::Tensor whole = at::empty(part.shape, stored.options());
      step_.read(part.name, whole, precise);
      place.copy_(whole.view(place.sizes()));
    }
    return stored;
  }

  // Memory that every tensor uses again.
  at::Tensor space(at::IntArrayRef shape, at::ScalarType dtype) {
    const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(dtype));
    if (space_.numel() < bytes) space_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
    return space_.narrow(0, 0, bytes).view(dtype).view(shape);
  }

  std::string config_text() const {
    Json config = request_.config;
    std::string dtype = at::toString(dtype_of_tensor(tensors_.at(order_.front())));
    if (dtype == "Float") dtype = "float32";
    if (dtype == "BFloat16") dtype = "bfloat16";
    if (dtype == "Half") dtype = "float16";
    arch::set_hf_dtype(config, dtype);
    return config.dump(2) + "\n";
  }

  void write(const std::string& name, const std::string& content) {
    OutputFile file(folder_ / name, request_.progress);
    file.write(content);
    file.finish();
    result_.files[name] = content.size();
  }

  const HfExportRequest& request_;
  StepModel& step_;
  const bool precise_;  // master weights where there are any
  std::vector<std::string> order_;
  std::map<std::string, arch::HfTensor> tensors_;
  fs::path folder_;
  at::Tensor space_ = at::empty({0}, at::TensorOptions().dtype(at::kByte));
  HfExportResult result_;
};

}  // namespace

HfExportResult export_hf(const HfExportRequest& request) {
  try {
    return Exporter(request).run();
  } catch (const fs::filesystem_error& error) {
    throw EnvironmentError({.code = "LS3101", .what = error.what()});
  }
}

}  // namespace lockstep::checkpoint
