// The parameters in one step's folder, read by boxes.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "lockstep/arch/model_config.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/piece_reader.h"
#include "lockstep/checkpoint/train_state.h"

namespace lockstep::checkpoint {

// The step that a path means: itself, or the newest whole one of a run directory or its checkpoints/. CheckpointError
// LS1310 where there is none.
std::filesystem::path find_step(const std::filesystem::path& run_or_step);

class StepModel {
 public:
  // CheckpointError LS1302, LS1303, LS1305, LS1312 for a damaged checkpoint, LS1307 where its parameters are not those of
  // the model it names: one is missing, surplus or of another shape.
  explicit StepModel(const std::filesystem::path& step_folder);

  const std::filesystem::path& path() const { return path_; }
  const arch::ModelConfig& model() const { return model_; }
  // The saved parameter, or its fp32 master weights where there are any and `precise` asks for them.
  const ManifestTensor& find(const std::string& name, bool precise = false) const;

  // Fills `to` with the whole parameter. Each saved piece is read once, and its checksum verified: CheckpointError
  // LS1304.
  void read(const std::string& name, const at::Tensor& to, bool precise = false);
  // Whether the values of each of its pieces lie side by side in the tensor (rows, or a part of one), so that it can be
  // scanned.
  bool is_in_runs(const std::string& name, bool precise = false) const;
  // Hands out the values front to back, some rows at a time, with the same checks; a part is gone when `take` returns.
  void scan(const std::string& name, const std::function<void(const at::Tensor&)>& take, bool precise = false);
  // Fills `to` with a box of it by ranges; checksums are not looked at.
  void read_box(const std::string& name, const Box& box, const at::Tensor& to);

 private:
  std::string saved_name(const std::string& name, bool precise) const;
  const PieceReader& reader(const std::string& file);

  std::filesystem::path path_;
  Manifest manifest_;
  TrainState train_state_;
  arch::ModelConfig model_;
  std::map<std::string, PieceReader> readers_;  // by path in the folder
};

}  // namespace lockstep::checkpoint
