// Reading a config.json key by key: for hf_config*.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/json.h"
#include "lockstep/base/text.h"

namespace lockstep::arch {

// Values of one JSON object by key, with every problem noted rather than the first thrown: as a line of `problems`, where a fallback
// (or 1, or nothing) stands in. null counts as missing.
class HfKeys {
 public:
  // The references outlive it. `path` stands before each key in lines: "rope_scaling.".
  HfKeys(const Json& object, std::string path, std::vector<std::string>& problems)
      : object_(object), path_(std::move(path)), problems_(problems) {}

  bool has(const char* key) const { return find(key) != nullptr; }
  std::string name(const char* key) const { return path_ + key; }
  const Json& json() const { return object_; }

  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  // Whole numbers. Without a fallback the key must be there.
  int64_t size(const char* key, std::optional<int64_t> fallback = std::nullopt, int64_t least = 1, int64_t most = int64_t{1} << 31) const {
    const Json* value = checked(key, !fallback, cat("a whole number from ", least, " to ", most), [&](const Json& number) {
      return number.is_number_integer() && number >= least && number <= most;
    });
    return value ? value->get<int64_t>() : fallback.value_or(1);
  }

  // Finite and above 0.
  double positive(const char* key, std::optional<double> fallback = std::nullopt) const {
    const Json* value = checked(key, !fallback, "a number above 0", [](const Json& number) {
      return number.is_number() && number.get<double>() > 0 && std::isfinite(number.get<double>());
    });
    return value ? value->get<double>() : fallback.value_or(1);
  }

  // So many of them; empty where it is missing or is not that.
  std::vector<double> positives(const char* key, int64_t count) const {
    const Json* value = checked(key, false, cat("a list of ", count, " numbers above 0"), [&](const Json& list) {
      const auto is_good = [](const Json& number) { return number.is_number() && number.get<double>() > 0 && std::isfinite(number.get<double>()); };
      return list.is_array() && std::ssize(list) == count && std::all_of(list.begin(), list.end(), is_good);
    });
    return value ? value->get<std::vector<double>>() : std::vector<double>();
  }

  // 0 where it is missing or no number.
  double above_zero(const char* key) const {
    const Json* value = find(key);
    return value && value->is_number() ? std::max(0.0, value->get<double>()) : 0;
  }

  bool flag(const char* key, bool fallback) const {
    const Json* value = checked(key, false, "true or false", &Json::is_boolean);
    return value ? value->get<bool>() : fallback;
  }

  std::string text(const char* key, std::string fallback) const {
    const Json* value = checked(key, false, "text", &Json::is_string);
    return value ? value->get<std::string>() : fallback;
  }

  // An object of its own; nothing where it is missing.
  std::optional<HfKeys> object(const char* key) const {
    const Json* value = checked(key, false, "an object", &Json::is_object);
    if (!value) return std::nullopt;
    return HfKeys(*value, cat(name(key), "."), problems_);
  }

  // A list of numbers from 0 to below `end`; empty where it is missing.
  std::vector<int64_t> indices(const char* key, int64_t end) const {
    const Json* value = checked(key, false, cat("a list of numbers from 0 to ", end - 1), [&](const Json& list) {
      const auto is_index = [&](const Json& number) { return number.is_number_integer() && number >= 0 && number < end; };
      return list.is_array() && std::all_of(list.begin(), list.end(), is_index);
    });
    return value ? value->get<std::vector<int64_t>>() : std::vector<int64_t>();
  }

  // A name of each of `count` layers; nothing where it is missing or is not that.
  std::optional<std::vector<std::string>> words(const char* key, int64_t count) const {
    const Json* value = checked(key, false, cat("a list of ", count, " names, one a layer"), [&](const Json& list) {
      return list.is_array() && std::ssize(list) == count && std::all_of(list.begin(), list.end(), [](const Json& word) { return word.is_string(); });
    });
    return value ? std::optional(value->get<std::vector<std::string>>()) : std::nullopt;
  }

  // Of each layer, and maybe of more of them; nothing where it is missing or is not that.
  std::optional<std::vector<bool>> flags(const char* key, int64_t count) const {
    const auto is_flag = [](const Json& flag) { return flag.is_boolean() || flag == 0 || flag == 1; };
    const Json* value = checked(key, false, cat("a list of ", count, " of 0 and 1, one a layer"), [&](const Json& list) {
      return list.is_array() && std::ssize(list) >= count && std::all_of(list.begin(), list.end(), is_flag);
    });
    if (!value) return std::nullopt;
    std::vector<bool> flags;
    for (int64_t i = 0; i < count; ++i) flags.push_back((*value)[static_cast<size_t>(i)] != 0 && (*value)[static_cast<size_t>(i)] != false);
    return flags;
  }

  // One number or a list of them.
  std::vector<int64_t> ids(const char* key) const {
    const auto is_id = [](const Json& id) { return id.is_number_integer() && id >= 0 && id < int64_t{1} << 31; };
    const Json* value = checked(key, false, "a token id or a list of them", [&](const Json& list) {
      return is_id(list) || (list.is_array() && std::all_of(list.begin(), list.end(), is_id));
    });
    if (!value) return {};
    return value->is_array() ? value->get<std::vector<int64_t>>() : std::vector{value->get<int64_t>()};
  }

 private:
  // Null where it is missing, or not `good` and so not `what` is expected.
  const Json* checked(const char* key, bool required, const std::string& what, const std::function<bool(const Json&)>& good) const {
    const Json* value = find(key);
    if (!value && required) problems_.push_back(cat(name(key), " is missing"));
    if (!value || good(*value)) return value;
    const std::string text = value->dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
    problems_.push_back(cat(name(key), " = ", text.substr(0, 60), ": ", what, " is expected"));
    return nullptr;
  }

  const Json& object_;
  std::string path_;
  std::vector<std::string>& problems_;
};

}  // namespace lockstep::arch
