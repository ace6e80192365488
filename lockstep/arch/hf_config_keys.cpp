#include "lockstep/arch/hf_config_keys.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::arch {

HfKeys::HfKeys(const Json& object, std::string path, std::vector<std::string>& problems)
    : object_(object), path_(std::move(path)), problems_(problems) {}

const Json* HfKeys::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

int64_t HfKeys::size(const char* key, std::optional<int64_t> fallback, const HfRange& range) const {
  const Json* value = find(key);
  if (!value && !fallback) missing(key);
  if (!value) return fallback.value_or(1);
  const bool good = value->is_number_integer() && *value >= range.least && *value <= range.most;
  if (!good) expected(key, *value, cat("a whole number from ", range.least, " to ", range.most));
  return good ? value->get<int64_t>() : 1;
}

double HfKeys::positive(const char* key, std::optional<double> fallback) const {
  const Json* value = find(key);
  if (!value && !fallback) missing(key);
  if (!value) return fallback.value_or(1);
  const bool good = value->is_number() && value->get<double>() > 0 && std::isfinite(value->get<double>());
  if (!good) expected(key, *value, "a number above 0");
  return good ? value->get<double>() : 1;
}

bool HfKeys::flag(const char* key, bool fallback) const {
  const Json* value = find(key);
  if (value && !value->is_boolean()) expected(key, *value, "true or false");
  return value && value->is_boolean() ? value->get<bool>() : fallback;
}

std::string HfKeys::text(const char* key, std::string fallback) const {
  const Json* value = find(key);
  if (value && !value->is_string()) expected(key, *value, "text");
  return value && value->is_string() ? value->get<std::string>() : fallback;
}

std::optional<HfKeys> HfKeys::object(const char* key) const {
  const Json* value = find(key);
  if (value && !value->is_object()) expected(key, *value, "an object");
  if (!value || !value->is_object()) return std::nullopt;
  return HfKeys(*value, cat(name(key), "."), problems_);
}

std::vector<int64_t> HfKeys::ids(const char* key) const {
  const Json* value = find(key);
  if (!value) return {};
  const auto is_id = [](const Json& id) { return id.is_number_integer() && id >= 0 && id < int64_t{1} << 31; };
  if (is_id(*value)) return {value->get<int64_t>()};
  if (value->is_array() && std::all_of(value->begin(), value->end(), is_id)) return value->get<std::vector<int64_t>>();
  expected(key, *value, "a token id or a list of them");
  return {};
}

void HfKeys::missing(const char* key) const { problems_.push_back(cat(name(key), " is missing")); }

void HfKeys::expected(const char* key, const Json& value, const std::string& what) const {
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  problems_.push_back(cat(name(key), " = ", text.substr(0, 60), ": ", what, " is expected"));
}

}  // namespace lockstep::arch
