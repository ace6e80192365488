// manifest.json: the list of all files, tensors and checksums of a checkpoint, written last. A folder without a valid
// one is not a checkpoint. Tensors are keyed by the name they have in the files: "blocks.0.attn.qkv.weight" in model/,
// "optim.master.blocks.0.attn.qkv.weight" in optim/ (saved_name() of shard_writer.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/box.h"

namespace lockstep::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kTrainStateName = "train_state.json";

// xxh3 of a safetensors file is of everything before its data (each piece has its own); of any other file, of the
// whole.
struct ManifestFile {
  uint64_t size = 0;  // bytes
  uint64_t hash = 0;
  bool operator==(const ManifestFile&) const = default;
};

struct Piece {
  std::string file;  // "model/shard-00001-model-00001-of-00001.safetensors"
  Box box;
  uint64_t hash = 0;  // xxh3 of its bytes
  bool operator==(const Piece&) const = default;
};

struct ManifestTensor {
  std::string dtype;  // "F32"
  Sizes shape;        // global
  std::vector<Piece> pieces;
  bool operator==(const ManifestTensor&) const = default;
};

struct Manifest {
  int64_t step = 0;
  std::string version{};                        // of Lockstep
  std::map<std::string, ManifestFile> files{};  // by path in the step's folder
  std::map<std::string, ManifestTensor> tensors{};
  bool operator==(const Manifest&) const = default;

  // Adds another rank's files and pieces. CheckpointError LS1305 where the two disagree about a tensor.
  void merge(const Manifest& other);
  uint64_t total_bytes() const;  // of all files
};

// CheckpointError LS1305 naming the first tensor whose pieces leave a hole, overlap or lie outside of it.
void check_cover(const Manifest& manifest, std::string_view origin);

// JSON that carries its own checksum: a flipped bit anywhere in it is found.
std::string manifest_text(const Manifest& manifest);
// CheckpointError LS1302 for a damaged or malformed text, or one of a later format; LS1305 from check_cover unless
// `partial`: one rank's part.
Manifest parse_manifest(std::string_view text, std::string_view origin, bool partial = false);

}  // namespace lockstep::checkpoint
