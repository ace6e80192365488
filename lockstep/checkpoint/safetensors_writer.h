// Writes safetensors files with the bytes the reference writer gives for the same content: tensors in the order of the
// format's dtype list from its end, then by name; the header padded with spaces to a multiple of 8 bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "lockstep/checkpoint/io.h"

namespace lockstep::checkpoint {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;  // any device, any strides
};

struct WrittenFile {
  uint64_t size = 0;         // bytes
  uint64_t header_hash = 0;  // xxh3 of everything before the data
  std::map<std::string, uint64_t> tensor_hashes{};
};

// A new file, synced to the disk. One tensor at a time is copied to the CPU, and only where it is not contiguous there.
// EnvironmentError LS3101 when the disk refuses; InternalError for two tensors of one name.
WrittenFile write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata, const Progress& progress = {});

}  // namespace lockstep::checkpoint
