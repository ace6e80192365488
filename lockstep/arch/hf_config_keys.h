// Values of one JSON object by key, with every problem noted rather than the first thrown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/json.h"

namespace lockstep::arch {

struct HfRange {
  int64_t least = 1;
  int64_t most = int64_t{1} << 31;
};

// null counts as missing. What is wrong goes to `problems` as a line; a fallback (or 1, or nothing) stands in.
class HfKeys {
 public:
  // The references outlive it. `path` stands before each key in lines: "rope_scaling.".
  HfKeys(const Json& object, std::string path, std::vector<std::string>& problems);

  const Json* find(const char* key) const;
  bool has(const char* key) const { return find(key) != nullptr; }
  // Whole numbers. Without a fallback the key must be there.
  int64_t size(const char* key, std::optional<int64_t> fallback = std::nullopt, const HfRange& range = {}) const;
  // Finite and above 0.
  double positive(const char* key, std::optional<double> fallback = std::nullopt) const;
  bool flag(const char* key, bool fallback) const;
  std::string text(const char* key, std::string fallback) const;
  // An object of its own; nothing where it is missing.
  std::optional<HfKeys> object(const char* key) const;
  // One number or a list of them.
  std::vector<int64_t> ids(const char* key) const;
  std::string name(const char* key) const { return path_ + key; }
  const Json& json() const { return object_; }

 private:
  void missing(const char* key) const;
  void expected(const char* key, const Json& value, const std::string& what) const;

  const Json& object_;
  std::string path_;
  std::vector<std::string>& problems_;
};

}  // namespace lockstep::arch
