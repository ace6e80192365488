#include "lockstep/data/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::data {
namespace {

using IdOf = std::function<std::optional<int32_t>(std::string_view)>;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw DataError({.code = "LS1216", .what = what, .where = path.string()});
}

// A token is written as its content, or as an object that has one.
std::optional<std::string> content_of(const Json& file, const std::string& name, const std::filesystem::path& path) {
  const auto found = file.find(name);
  if (found == file.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && found->at("content").is_string())
    return found->at("content").get<std::string>();
  refuse(path, cat(name, " is ", found->dump(), ", neither a text nor an object with a content"));
}

void read_names(const std::filesystem::path& path, const IdOf& id_of, SpecialIds& ids) {
  if (!std::filesystem::exists(path)) return;
  const Json file = read_json(path);
  if (!file.is_object()) refuse(path, "is not a JSON object");
  const std::array<std::pair<const char*, std::optional<int32_t>*>, 4> names = {
      {{"bos_token", &ids.bos}, {"eos_token", &ids.eos}, {"pad_token", &ids.pad}, {"unk_token", &ids.unk}}};
  for (const auto& [name, id] : names) {
    const std::optional<std::string> content = content_of(file, name, path);
    if (!content || *id) continue;
    *id = id_of(*content);
    if (!*id) refuse(path, cat(name, " \"", *content, "\" is not a token of tokenizer.json"));
  }
}

void read_stop_ids(const std::filesystem::path& path, int64_t vocab_size, SpecialIds& ids) {
  if (!std::filesystem::exists(path)) return;
  const Json file = read_json(path);
  if (!file.is_object()) refuse(path, "is not a JSON object");
  const auto found = file.find("eos_token_id");
  if (found == file.end() || found->is_null()) return;
  const Json list = found->is_array() ? *found : Json::array({*found});
  for (const Json& value : list) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT32_MAX))
      refuse(path, cat("eos_token_id holds ", value.dump(), ", which is no token id"));
    // A model may have more rows than its tokenizer has tokens, so an id beyond them is no error; it cannot be text.
    const auto id = value.get<int32_t>();
    if (id < vocab_size && std::find(ids.stop.begin(), ids.stop.end(), id) == ids.stop.end()) ids.stop.push_back(id);
  }
}

}  // namespace

SpecialIds read_special_ids(const std::filesystem::path& folder, const IdOf& id_of, int64_t vocab_size) {
  SpecialIds ids;
  read_names(folder / "tokenizer_config.json", id_of, ids);
  read_names(folder / "special_tokens_map.json", id_of, ids);
  if (ids.eos) ids.stop.push_back(*ids.eos);
  read_stop_ids(folder / "generation_config.json", vocab_size, ids);
  return ids;
}

}  // namespace lockstep::data
