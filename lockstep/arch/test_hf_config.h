// config.json of tests: read, changed, refused.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lockstep/arch/hf_config.h"
#include "lockstep/base/error.h"

namespace lockstep::arch::testing {

inline HfConfig read(const Json& config, const Json& generation = nullptr) { return parse_hf_config(config, generation, "config.json"); }
inline ModelConfig model_of(const Json& config) { return read(config).model; }

inline Json with(Json config, const char* key, const Json& value) {
  config[key] = value;
  return config;
}
inline Json without(Json config, const char* key) {
  config.erase(key);
  return config;
}

inline Message refusal(const Json& config) {
  try {
    read(config);
  } catch (const DataError& error) {
    EXPECT_EQ(error.message().where, "config.json");
    return error.message();
  }
  ADD_FAILURE() << "accepted: " << config.dump();
  return {};
}

// Why a model has no config.json.
inline std::string unwritable(const ModelConfig& model) {
  try {
    hf_config_json(model);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message().code, "LS1123");
    return error.message().what;
  }
  ADD_FAILURE() << "written: " << describe(model);
  return "";
}

}  // namespace lockstep::arch::testing
