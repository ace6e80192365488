// The header of a safetensors file (github.com/huggingface/safetensors), parsed strictly and without building a tree:
// what is held beside the text is the list of tensors.
// Stricter than the reference reader: duplicate keys and a header that does not begin with an opening brace are
// refused; at most 1e6 tensors, 8 dims, names of 1 KiB.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

struct SafetensorsEntry {
  std::string name;
  std::string_view dtype;  // as the format spells it: "BF16"
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the first byte of the data
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by name
  std::map<std::string, std::string> metadata;

  const SafetensorsEntry* find(std::string_view name) const;  // null where there is none
};

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // bytes

// The next part of the text, of any size; empty at its end. What was given before may be overwritten.
using TextSource = std::function<std::string_view()>;

// `data_size` is what follows the header in the file. DataError LS1290 naming `origin`, and the tensor where there is
// one.
SafetensorsHeader parse_safetensors_header(const TextSource& source, uint64_t data_size, std::string_view origin);
SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_size, std::string_view origin);

}  // namespace lockstep::checkpoint
