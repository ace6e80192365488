// What `lockstep checkpoint inspect` and `verify` say of a Hugging Face model directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/json.h"

namespace lockstep::checkpoint {

struct HfReport {
  std::filesystem::path path;
  std::vector<std::string> problems{};  // none = it can be imported
  std::vector<std::string> notes{};     // of config.json: keys that have no effect here
  // The rest is empty where it cannot be read.
  std::string model{};                     // "llama 16 x 2048, 32 heads, ..."
  std::map<std::string, uint64_t> files{};  // bytes of the files with weights
  uint64_t bytes = 0;                       // of them together
  int64_t parameters = 0;                   // elements of our parameters
  std::map<std::string, int64_t> tensors{};  // number of stored tensors by dtype
  bool read_values = false;                 // whether every value was looked at
  bool good() const { return problems.empty(); }
};

// Headers and config.json; `values`: every value too, which must be finite. Never throws for what is in the directory.
HfReport inspect_hf(const std::filesystem::path& directory, bool values);

std::string report_text(const HfReport& report);
OrderedJson report_json(const HfReport& report);

}  // namespace lockstep::checkpoint
