// The weights of a Hugging Face model directory: one model.safetensors, or shards and model.safetensors.index.json.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/source.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {

// Opens every file and checks its header; no values are read.
class HfDirectory {
 public:
  // DataError LS1320 where there are no weights, LS1321 where there are only pickled ones, LS1322 for a malformed index
  // or one that names a file outside of the directory, LS1323 where index and files disagree, LS1290 for a malformed
  // file, LS1204 for one that is a link.
  explicit HfDirectory(const std::filesystem::path& directory);

  struct Stored {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, Stored>& tensors() const { return tensors_; }  // by the name in the files
  const std::map<std::string, SafetensorsFile>& files() const { return files_; }

 private:
  void open_shards();
  void add_unlisted();

  std::filesystem::path path_;
  std::map<std::string, SafetensorsFile> files_;  // by name in the directory
  std::map<std::string, Stored> tensors_;
};

}  // namespace lockstep::checkpoint
