// Reads saved pieces of tensors from one file of a checkpoint, by ranges, and checks their sums on the way.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {

// A box of the global tensor, and the tensor of its shape to fill: any dtype and device, also a view.
struct Destination {
  Box box;
  at::Tensor tensor;
};

class PieceReader {
 public:
  // CheckpointError LS1303 where size, header or its checksum are not what the manifest says.
  PieceReader(const std::filesystem::path& step_folder, const std::string& file, const Manifest& manifest);

  // Copies what `piece` of tensor `name` has of each destination, converting the dtype. Some 16 MiB are held at a time.
  // All of the piece is read and CheckpointError LS1304 thrown where its sum is wrong: the destinations then hold
  // damaged values.
  void read(const std::string& name, const Piece& piece, const std::vector<Destination>& destinations) const;

  const SafetensorsFile& file() const { return file_; }
  // Where the piece is in the file; CheckpointError LS1303 where the file does not hold what the manifest says.
  const SafetensorsEntry& entry(const std::string& name, const Piece& piece) const;

 private:
  SafetensorsFile file_;
};

}  // namespace lockstep::checkpoint
