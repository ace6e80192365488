// JSON read strictly: a size and depth limit, duplicate keys refused, errors that name the file.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace lockstep {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// DataError LS1205 naming `origin` on malformed text, duplicate keys or nesting deeper than 64.
Json parse_json(std::string_view text, std::string_view origin);
Json read_json(const std::filesystem::path& path);

}  // namespace lockstep
