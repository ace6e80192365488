#include "lockstep/plan/evidence/row_fields.h"

#include <cmath>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::plan {
namespace {

constexpr size_t kMostShown = 60;  // characters of a value
constexpr double kMostWhole = 9007199254740992.0;  // 2^53: a double holds all whole numbers up to there

[[noreturn]] void refuse_row(const std::string& origin, const std::string& what) {
  throw DataError({.code = "LS1261", .what = what, .where = origin, .way_out = "rows are as schema 2 of published_runs.json has them"});
}

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kMostShown ? text : text.substr(0, kMostShown) + "...";
}

Json row_of_line(const std::string& line) {
  try {
    return parse_json(line, "a line");
  } catch (const DataError&) {
    return line;
  }
}

}  // namespace

RowFields::RowFields(const Json& object, std::string origin, std::string row)
    : object_(object), origin_(std::move(origin)), row_(std::move(row)) {
  if (!object.is_object()) refuse_row(origin_, cat(row_, " is ", shown(object), ", not an object"));
}

const Json* RowFields::find(std::string_view name) const {
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void RowFields::refuse(std::string_view name, const Json& value, std::string_view wanted) const {
  refuse_row(origin_, cat(row_, ": ", prefix_, name, " is ", shown(value), ", not ", wanted));
}

std::optional<int64_t> RowFields::whole(std::string_view name) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(std::abs(number) <= kMostWhole) || number != std::floor(number)) refuse(name, *value, "a whole number");
  return static_cast<int64_t>(number);
}

std::optional<double> RowFields::number(std::string_view name) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) refuse(name, *value, "a number");
  return value->get<double>();
}

std::optional<bool> RowFields::flag(std::string_view name) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) refuse(name, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::string> RowFields::text(std::string_view name) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) refuse(name, *value, "a text");
  return value->get<std::string>();
}

std::vector<std::string> RowFields::texts(std::string_view name) const {
  const Json* value = find(name);
  if (!value) return {};
  std::vector<std::string> texts;
  if (!value->is_array()) refuse(name, *value, "a list of texts");
  for (const Json& one : *value) {
    if (!one.is_string()) refuse(name, one, "a text");
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

std::optional<RowFields> RowFields::object(std::string_view name) const {
  const Json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_object()) refuse(name, *value, "an object");
  RowFields fields(*value, origin_, row_);
  fields.prefix_ = cat(prefix_, name, ".");
  return fields;
}

Json parse_file_of_runs(std::string_view text, std::string_view origin) {
  try {
    Json file = parse_json(text, origin);
    const bool alone = file.is_object() && !file.contains("runs") && file.contains("model");  // a file of one line
    return alone ? Json::array({std::move(file)}) : file;
  } catch (const DataError&) {
    Json rows = Json::array();
    for (const std::string& line : split(text, '\n')) {
      const size_t begin = line.find_first_not_of(" \t\r");
      if (begin == std::string::npos) continue;
      Json row = row_of_line(line);
      if (rows.empty() && !row.is_object()) throw;  // no file of lines
      rows.push_back(std::move(row));
    }
    return rows;
  }
}

const Json& rows_of(const Json& file, std::string_view origin) {
  if (file.is_array()) return file;
  const auto runs = file.is_object() ? file.find("runs") : file.end();
  if (runs == file.end() || !runs->is_array()) refuse_row(std::string(origin), "there is no list \"runs\"");
  return *runs;
}

std::string row_name(const Json& row, size_t index) {
  const auto id = row.is_object() ? row.find("id") : row.end();
  if (id != row.end() && id->is_string()) return cat("run ", id->get<std::string>());
  return id != row.end() && id->is_number() ? cat("run ", id->dump()) : cat("run ", index + 1);
}

}  // namespace lockstep::plan
