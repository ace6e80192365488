#include "lockstep/checkpoint/hf_directory.h"

#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/io.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxIndex = 100'000'000;  // bytes, as for a header
constexpr size_t kMaxNamed = 20;             // of a list of names in a message

std::string some_of(const std::set<std::string>& names) {
  std::vector<std::string> shown(names.begin(), std::next(names.begin(), std::min<int>(names.size(), kMaxNamed)));
  return cat(join(shown, ", "), names.size() > shown.size() ? cat(" and ", names.size() - shown.size(), " more") : "");
}

bool is_pickle(const fs::path& file) {
  const std::string extension = file.extension().string();
  return extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt";
}

[[noreturn]] void no_weights(const fs::path& directory) {
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(directory, missing)) {
    if (!is_pickle(entry.path())) continue;
    throw DataError(
        {.code = "LS1321",
         .what = cat(directory.string(), " has no safetensors, only pickled weights: ", entry.path().filename().string()),
         .way_out = "a pickle can run any code and is not read; convert it where you trust it, in Python: "
                    "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)"});
  }
  throw DataError({.code = "LS1320",
                   .what = missing ? cat(directory.string(), ": ", missing.message())
                                   : cat(directory.string(), " has neither ", kHfWeights, " nor ", kHfIndex),
                   .way_out = "name the directory of a Hugging Face model, with config.json and safetensors"});
}

bool is_component(std::string_view name) {
  if (name.empty() || name == "." || name == "..") return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

SafetensorsFile open_file(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_symlink(path, ignored))
    throw DataError({.code = "LS1204",
                     .what = cat("cannot read ", path.string(), ": it is a symbolic link"),
                     .way_out = "links are not followed; copy the directory with its files: cp -rL DIR COPY"});
  return SafetensorsFile(path);
}

// Name of a tensor -> name of its file.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const auto refuse = [&](const std::string& what) {
    throw DataError({.code = "LS1322", .what = cat("not a valid index of model files: ", what), .where = path.string()});
  };
  const InputFile file(path);
  if (file.size() > kMaxIndex) refuse(cat(file.size(), " bytes, at most ", kMaxIndex));
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  const Json json = parse_json(text, path.string());
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    refuse("it has no object 'weight_map'");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, name] : json["weight_map"].items()) {
    if (!name.is_string()) refuse(cat("tensor '", tensor, "' has no file name"));
    files[tensor] = name.get<std::string>();
    if (!is_component(files[tensor]) || !files[tensor].ends_with(".safetensors"))
      refuse(cat("tensor '", tensor, "' is in ", name.dump(), ", which is no safetensors file of this directory"));
  }
  if (files.empty()) refuse("it lists no tensor");
  return files;
}

}  // namespace

HfDirectory::HfDirectory(const fs::path& directory) : path_(directory) {
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(path_ / kHfWeights, ignored))) {
    files_.emplace(kHfWeights, open_file(path_ / kHfWeights));
    add_unlisted();
  } else if (fs::exists(fs::symlink_status(path_ / kHfIndex, ignored))) {
    open_shards();
  } else {
    no_weights(path_);
  }
}

void HfDirectory::open_shards() {
  const auto listed = read_index(path_ / kHfIndex);
  std::set<std::string> lost, absent;
  for (const auto& [tensor, name] : listed) {
    if (files_.contains(name) || absent.contains(name)) continue;
    if (fs::exists(fs::symlink_status(path_ / name))) {
      files_.emplace(name, open_file(path_ / name));
    } else {
      absent.insert(name);
    }
  }
  const auto disagree = [&](const std::string& what) {
    throw DataError({.code = "LS1323",
                     .what = cat("index and files of ", path_.string(), " disagree: ", what),
                     .way_out = "the directory was not copied or downloaded as a whole: fetch it again"});
  };
  if (!absent.empty()) disagree(cat("no file ", some_of(absent)));
  for (const auto& [tensor, name] : listed) {
    const SafetensorsFile& file = files_.at(name);
    const SafetensorsEntry* entry = file.find(tensor);
    if (entry == nullptr) {
      lost.insert(cat(tensor, " (in ", name, ")"));
    } else {
      tensors_[tensor] = {&file, entry};
    }
  }
  if (!lost.empty()) disagree(cat("the files lack ", some_of(lost)));
  const size_t known = tensors_.size();
  add_unlisted();
  if (tensors_.size() == known) return;
  std::set<std::string> unlisted;
  for (const auto& [name, stored] : tensors_) {
    if (!listed.contains(name)) unlisted.insert(cat(name, " (in ", stored.file->path().filename().string(), ")"));
  }
  disagree(cat("the index does not list ", some_of(unlisted)));
}

void HfDirectory::add_unlisted() {
  for (const auto& [name, file] : files_) {
    for (const SafetensorsEntry& entry : file.header().entries) tensors_.try_emplace(entry.name, Stored{&file, &entry});
  }
}

}  // namespace lockstep::checkpoint
