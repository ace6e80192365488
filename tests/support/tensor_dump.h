// Tensors for a test in Python: index.json (names with shapes and offsets) and data.bin (fp32, row-major, one after the other).
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep::testing {

class TensorDump {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    const at::Tensor values = tensor.to(at::kFloat).contiguous();
    index_.push_back({{"name", name}, {"shape", values.sizes().vec()}, {"offset", data_.size()}});
    data_.append(static_cast<const char*>(values.data_ptr()), values.nbytes());
  }
  void write(const std::filesystem::path& folder) {
    write_file(folder / "data.bin", data_);
    write_file(folder / "index.json", index_.dump(1));
  }

 private:
  std::string data_;
  Json index_ = Json::array();
};

}  // namespace lockstep::testing
