// Safetensors files (github.com/huggingface/safetensors), read strictly: u64 header size, JSON header, data.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/io.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep::checkpoint {

// An open file; its header is read and checked at once.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  uint64_t size() const { return file_.size(); }
  const SafetensorsHeader& header() const { return header_; }
  // xxh3 of everything before the data.
  uint64_t header_hash() const { return header_hash_; }
  const SafetensorsEntry* find(std::string_view name) const { return header_.find(name); }  // null where there is none

  // Bytes [begin, begin + size) of the tensor.
  void read(const SafetensorsEntry& entry, uint64_t begin, void* out, size_t size) const;
  // The whole tensor on the CPU. DataError LS1291 where there is none of that name, or LibTorch lacks its dtype.
  at::Tensor tensor(const std::string& name) const;

 private:
  InputFile file_;
  SafetensorsHeader header_;
  uint64_t data_begin_ = 0;
  uint64_t header_hash_ = 0;
};

}  // namespace lockstep::checkpoint
