// Fields of one row of a file of runs, by name. A field that is missing or null is not set.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/json.h"

namespace lockstep::plan {

class RowFields {
 public:
  // `origin` is the file, `row` says which row of it: "run sc21_table1-001". DataError LS1261 where `object` is not an object.
  RowFields(const Json& object, std::string origin, std::string row);

  // DataError LS1261 with file, row and field where the value has another type.
  std::optional<int64_t> whole(std::string_view name) const;  // 8 and 8.0
  std::optional<double> number(std::string_view name) const;
  std::optional<bool> flag(std::string_view name) const;
  std::optional<std::string> text(std::string_view name) const;
  std::vector<std::string> texts(std::string_view name) const;
  std::optional<RowFields> object(std::string_view name) const;  // its fields are named "layout.tp"
  const Json& json() const { return object_; }

 private:
  const Json* find(std::string_view name) const;
  [[noreturn]] void refuse(std::string_view name, const Json& value, std::string_view wanted) const;

  const Json& object_;
  std::string origin_, row_, prefix_{};
};

// What a file of runs says, JSON or a run on every line: then the list of them, and a line that is not JSON is there as its text. DataError LS1205.
Json parse_file_of_runs(std::string_view text, std::string_view origin);
// The rows of a file: its list "runs", or the file itself. DataError LS1261 where there is none.
const Json& rows_of(const Json& file, std::string_view origin);
// "run sc21_table1-001"; of a row without an id "run 17". An id may be a number.
std::string row_name(const Json& row, size_t index);

}  // namespace lockstep::plan
