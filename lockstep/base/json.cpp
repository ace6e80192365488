#include "lockstep/base/json.h"

#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

constexpr int kMaxDepth = 64;

[[noreturn]] void refuse(std::string_view origin, const std::string& what) {
  throw DataError({.code = "LS1205", .what = what, .where = std::string(origin)});
}

}  // namespace

Json parse_json(std::string_view text, std::string_view origin) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) refuse(origin, cat("JSON nested deeper than ", kMaxDepth));
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      refuse(origin, cat("duplicate JSON key \"", value.get<std::string>(), "\""));
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& error) {
    refuse(origin, cat("malformed JSON: ", error.what()));
  }
}

Json read_json(const std::filesystem::path& path) { return parse_json(read_file(path), path.string()); }

}  // namespace lockstep
