// A Hugging Face model directory seen as our parameters: what is stored for each, checked against the model, and read by
// ranges.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/arch/hf_names.h"
#include "lockstep/checkpoint/box.h"
#include "lockstep/checkpoint/hf_directory.h"

namespace lockstep::checkpoint {

class HfModel {
 public:
  // Every tensor of `model` must be there with its shape and a floating dtype, and none besides but known buffers and the
  // head of a tied model. Experts may be stored one by one or stacked (arch::HfForm). DataError LS1324 with what is missing,
  // unexpected or of another shape or dtype; ConfigError LS1123 where the model has parameters that its family has not; otherwise as
  // HfDirectory. The check is the same on every rank.
  HfModel(const std::filesystem::path& directory, const arch::ModelConfig& model);

  // Our parameter, and where it lies in the stored tensor.
  struct Source : arch::HfPart {
    HfDirectory::Stored stored{};
    bool transposed = false;
  };

  const HfDirectory& directory() const { return directory_; }
  const std::map<std::string, Source>& parameters() const { return parameters_; }  // by our name

  // Fills `to` with `box` of our parameter `name`: any dtype, device and strides. DataError LS1204 where a file ends
  // early, LS1328 where the head of a tied model is stored besides the embedding and differs from it in the box. 8 MiB are held besides.
  void read(const std::string& name, const Box& box, const at::Tensor& to) const;

 private:
  void check_tied_head(const Source& source, const Box& box) const;

  HfDirectory directory_;
  std::map<std::string, Source> parameters_;
  HfDirectory::Stored tied_head_{};  // stored though the model is tied
};

}  // namespace lockstep::checkpoint
