// The safetensors format (github.com/huggingface/safetensors), read strictly: u64 header size, JSON header, data.
// Stricter than the reference reader: duplicate keys and a header that does not begin with an opening brace are
// refused; at most 1e6 tensors, 8 dims, names of 1 KiB.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/io.h"

namespace lockstep::checkpoint {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as the format spells it: "BF16"
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the first byte of the data
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

// `json` is the header's text and `data_size` what follows it in the file. DataError LS1290 naming `origin`, and the
// tensor where there is one.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_size, std::string_view origin);

// An open file; its header is read and checked at once.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  uint64_t size() const { return file_.size(); }
  const SafetensorsHeader& header() const { return header_; }
  // xxh3 of everything before the data.
  uint64_t header_hash() const { return header_hash_; }
  const SafetensorsEntry* find(const std::string& name) const;  // null where there is none

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
