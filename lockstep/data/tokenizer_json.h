// Reading one component of a tokenizer.json: typed members, and errors that name the component.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/data/regex.h"

namespace lockstep::data {

// A JSON object of the file, and its path in it for messages ("pre_tokenizer.pretokenizers[1]").
class Component {
 public:
  // DataError LS1210 unless `node` is an object.
  Component(const Json& node, std::string path, std::string file);

  // DataError LS1211 naming the first member that is not in `names`: nothing in the file is silently skipped.
  void allow_only(std::initializer_list<std::string_view> names) const;

  bool has(std::string_view name) const;  // present and not null
  const Json& at(std::string_view name) const;
  std::string type() const { return text("type"); }
  std::string text(std::string_view name) const;
  bool flag(std::string_view name, bool if_absent) const;
  Component child(std::string_view name) const;
  // A whole number from `low` to `high`.
  int64_t integer(std::string_view name, int64_t low, int64_t high) const;
  // The objects of a list.
  std::vector<Component> list(std::string_view name) const;
  // {"Regex": ...} or {"String": ...}.
  Regex pattern(std::string_view name) const;
  // A string of one code point.
  std::string letter(std::string_view name) const;

  // LS1210: the file is malformed. LS1211: it asks for something that is not supported.
  [[noreturn]] void malformed(const std::string& what) const;
  [[noreturn]] void unsupported(const std::string& what) const;

  const Json& node() const { return *node_; }
  const std::string& path() const { return path_; }
  const std::string& file() const { return file_; }

 private:
  const Json* node_;
  std::string path_, file_;
};

}  // namespace lockstep::data
