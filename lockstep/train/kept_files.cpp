#include "lockstep/train/kept_files.h"

#include "lockstep/base/file.h"
#include "lockstep/base/source.h"
#include "lockstep/checkpoint/directory.h"
#include "lockstep/train/beginning.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizer = kTokenizerFiles[0];

}  // namespace

KeptFiles::KeptFiles(const config::RunConfig& config) {
  if (!config.data.tokenizer.empty()) {
    const fs::path tokenizer = tokenizer_file(config.data.tokenizer);
    content_[kTokenizer] = read_file(tokenizer);
    for (const char* name : kTokenizerFiles) {
      if (const fs::path file = tokenizer.parent_path() / name; name != kTokenizer && fs::exists(file))
        content_[name] = read_file(file);
    }
  }
  if (!config.model.from.empty()) take(source_folder(config.model.from), "config.json");
  const std::string& resume = config.checkpoint.resume;
  if (names_a_place(resume)) take(checkpoint::run_of(resume), kHfConfigFile);
}

void KeptFiles::take(const fs::path& folder, const char* config_name) {
  if (fs::exists(folder / config_name)) content_.try_emplace(kHfConfigFile, read_file(folder / config_name));
  const auto tokenizer = content_.find(kTokenizer);
  const bool has_one = fs::exists(folder / kTokenizer);
  if (has_one && tokenizer != content_.end() && tokenizer->second != read_file(folder / kTokenizer)) return;
  for (const char* name : kTokenizerFiles) {
    if (fs::exists(folder / name) && !content_.contains(name)) content_[name] = read_file(folder / name);
  }
}

void KeptFiles::write(const RunDirectory& directory) const {
  const fs::path tokenizer = directory.root() / kTokenizer;
  const auto ours = content_.find(kTokenizer);
  if (ours != content_.end() && fs::exists(tokenizer) && read_file(tokenizer) != ours->second) {
    for (const char* name : kTokenizerFiles) fs::remove(directory.root() / name);
  }
  for (const auto& [name, content] : content_) write_file(directory.root() / name, content);
}

}  // namespace lockstep::train
