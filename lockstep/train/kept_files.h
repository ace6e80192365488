// What a run keeps in its folder of what it was started from, so that it can be generated from, talked with and exported
// by itself: tokenizer.json with the files beside it (kTokenizerFiles), byte for byte, and a model directory's config.json.
#pragma once

#include <map>
#include <string>

#include "lockstep/config/run_config.h"
#include "lockstep/train/run_directory.h"

namespace lockstep::train {

class KeptFiles {
 public:
  // Reads them: from beside data.tokenizer; then from model.from; then from the run whose checkpoint
  // checkpoint.resume names. What belongs to another tokenizer than the one taken first is left. DataError LS1203.
  explicit KeptFiles(const config::RunConfig& config);

  // Where the tokenizer is another than before, files of the old one go.
  void write(const RunDirectory& directory) const;

 private:
  void take(const std::filesystem::path& folder, const char* config_name);

  std::map<std::string, std::string> content_;  // by the name in the run's folder
};

}  // namespace lockstep::train
