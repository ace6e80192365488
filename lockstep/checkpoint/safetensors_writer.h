// Writes safetensors files with the bytes the reference writer gives for the same content: tensors in the order of the
// format's dtype list from its end, then by name; the header padded with spaces to a multiple of 8 bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/io.h"

namespace lockstep::checkpoint {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;  // any device, any strides
};

// What a file will hold, known before its values are.
struct PlannedTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
};

struct WrittenFile {
  uint64_t size = 0;         // bytes
  uint64_t header_hash = 0;  // xxh3 of everything before the data
  std::map<std::string, uint64_t> tensor_hashes{};  // xxh3 of the data
};

// A new file, synced to the disk, with the sum of each tensor. One tensor at a time is copied to the CPU, and only where
// it is not contiguous there. EnvironmentError LS3101 when the disk refuses; InternalError for two tensors of one name.
WrittenFile write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata, const Progress& progress = {});

// Takes the bytes of a tensor front to back, in as many parts as there are; they may be let go of at once.
using ByteSink = std::function<void(const void* data, size_t size)>;

// The same of tensors that are made one after the other, in the order of the file: `make` hands on the bytes of the
// planned tensor. No sums are taken of them.
WrittenFile write_safetensors(const std::filesystem::path& path, std::span<const PlannedTensor> tensors,
                              const std::function<void(const PlannedTensor&, const ByteSink&)>& make,
                              const std::map<std::string, std::string>& metadata, const Progress& progress = {});

}  // namespace lockstep::checkpoint
