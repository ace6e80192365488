// Reads saved pieces of tensors from one file of a checkpoint, by ranges, and checks their sums on the way.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
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

  // Copies what `piece` of tensor `name` has of each destination, converting the dtype. The bytes go straight to a
  // single destination that holds them as they are; else 2 MiB, or a row, are held at a time. All of the piece is read
  // and CheckpointError LS1304 thrown where its sum is wrong: the destinations then hold damaged values.
  void read(const std::string& name, const Piece& piece, const std::vector<Destination>& destinations) const;
  // Hands out the piece by whole rows, front to back: `take` gets their box and their values, which are gone when it
  // returns. LS1304 comes when all were handed out.
  void scan(const std::string& name, const Piece& piece,
            const std::function<void(const Box&, const at::Tensor&)>& take) const;

  const SafetensorsFile& file() const { return file_; }
  // Where the piece is in the file; CheckpointError LS1303 where the file does not hold what the manifest says.
  const SafetensorsEntry& entry(const std::string& name, const Piece& piece) const;

 private:
  using Place = std::function<at::Tensor(const Box& rows)>;  // contiguous, where these rows are to be read to
  void read_rows(const std::string& name, const Piece& piece, const Place& place,
                 const std::function<void(const Box&, const at::Tensor&)>& take) const;

  SafetensorsFile file_;
};

}  // namespace lockstep::checkpoint
