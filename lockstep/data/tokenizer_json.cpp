#include "lockstep/data/tokenizer_json.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/utf8.h"

namespace lockstep::data {

Component::Component(const Json& node, std::string path, std::string file)
    : node_(&node), path_(std::move(path)), file_(std::move(file)) {
  if (!node.is_object()) malformed(cat("is a JSON ", node.type_name(), ", not an object"));
}

void Component::allow_only(std::initializer_list<std::string_view> names) const {
  for (const auto& [name, value] : node_->items())
    if (std::find(names.begin(), names.end(), name) == names.end()) unsupported(cat("has a member \"", name, "\""));
}

bool Component::has(std::string_view name) const {
  const auto found = node_->find(std::string(name));
  return found != node_->end() && !found->is_null();
}

const Json& Component::at(std::string_view name) const {
  if (!has(name)) malformed(cat("has no \"", name, "\""));
  return *node_->find(std::string(name));
}

std::string Component::text(std::string_view name) const {
  const Json& value = at(name);
  if (!value.is_string()) malformed(cat("member \"", name, "\" is a JSON ", value.type_name(), ", not a string"));
  return value.get<std::string>();
}

bool Component::flag(std::string_view name, bool if_absent) const {
  if (!has(name)) return if_absent;
  const Json& value = at(name);
  if (!value.is_boolean()) malformed(cat("member \"", name, "\" is a JSON ", value.type_name(), ", not true or false"));
  return value.get<bool>();
}

Component Component::child(std::string_view name) const {
  return Component(at(name), path_.empty() ? std::string(name) : cat(path_, ".", name), file_);
}

int64_t Component::integer(std::string_view name, int64_t low, int64_t high) const {
  const Json& value = at(name);
  // Numbers beyond int64 are unsigned in the JSON library, and would come out negative.
  const bool whole = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (!whole || value.get<int64_t>() < low || value.get<int64_t>() > high)
    malformed(cat("member \"", name, "\" is ", value.dump(), ", not a whole number from ", low, " to ", high));
  return value.get<int64_t>();
}

std::vector<Component> Component::list(std::string_view name) const {
  const Json& values = at(name);
  if (!values.is_array()) malformed(cat("member \"", name, "\" is a JSON ", values.type_name(), ", not a list"));
  std::vector<Component> parts;
  const std::string path = path_.empty() ? std::string(name) : cat(path_, ".", name);
  for (size_t i = 0; i < values.size(); ++i) parts.emplace_back(values[i], cat(path, "[", i, "]"), file_);
  return parts;
}

Regex Component::pattern(std::string_view name) const {
  const Component pattern = child(name);
  pattern.allow_only({"Regex", "String"});
  const bool regex = pattern.has("Regex");
  if (regex == pattern.has("String")) pattern.malformed("has to hold either a Regex or a String");
  const std::string text = pattern.text(regex ? "Regex" : "String");
  if (text.empty()) pattern.unsupported("is empty");
  return Regex(text, regex ? Regex::Kind::kPattern : Regex::Kind::kLiteral);
}

std::string Component::letter(std::string_view name) const {
  const std::string value = text(name);
  size_t at = 0;
  if (!value.empty()) decode_utf8(value, at);
  if (value.empty() || at != value.size())
    malformed(cat("member \"", name, "\" is \"", value, "\", not one character"));
  return value;
}

void Component::malformed(const std::string& what) const {
  throw DataError({.code = "LS1210", .what = cat(path_.empty() ? "the tokenizer" : path_, " ", what), .where = file_});
}

void Component::unsupported(const std::string& what) const {
  throw DataError(
      {.code = "LS1211",
       .what = cat(path_.empty() ? "the tokenizer" : path_, " ", what, ", which is not supported"),
       .where = file_,
       .way_out = "supported: byte-level BPE (GPT-2, Llama 3, Qwen style); `lockstep data tokenizer` trains one"});
}

}  // namespace lockstep::data
