#include "lockstep/base/source.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

fs::path without_prefix(std::string_view source) {
  const fs::path path = source.starts_with(kHfPrefix) ? source.substr(kHfPrefix.size()) : source;
  if (path.empty())
    throw DataError({.code = "LS1203",
                     .what = "no model or tokenizer is named",
                     .way_out = "a directory, a file in it, or hf:DIR"});
  return path.has_filename() ? path : path.parent_path();  // "DIR/" is DIR
}

}  // namespace

fs::path source_folder(std::string_view source) {
  const fs::path path = without_prefix(source);
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return path;
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

fs::path tokenizer_file(std::string_view source) {
  const fs::path path = without_prefix(source);
  std::error_code ignored;
  return source.starts_with(kHfPrefix) || fs::is_directory(path, ignored) ? source_folder(source) / "tokenizer.json" : path;
}

bool names_hf_model(std::string_view source) {
  if (source.starts_with(kHfPrefix)) return true;
  const fs::path folder = source_folder(source);
  constexpr std::array kNames = {"config.json", kHfWeights, kHfIndex};
  std::error_code ignored;
  return std::ranges::any_of(kNames, [&](const char* name) { return fs::exists(fs::symlink_status(folder / name, ignored)); });
}

}  // namespace lockstep
