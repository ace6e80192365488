// From files and overrides to one configuration that knows where each value came from.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/config/run_config.h"

namespace lockstep::config {

// `--optimizer.lr=1e-4`: key "optimizer.lr", value "1e-4".
struct Override {
  std::string key;
  std::string value;
};

struct LoadedConfig {
  RunConfig config{};
  // "train.steps" -> "run.toml:17", "--train.steps" or "default"; one entry per field.
  std::map<std::string, std::string> origin{};
};

// Layers, later wins: defaults < what a file `extends` < the files in order < overrides. Strict: ConfigError
//   LS1040 the file is not TOML        LS1041 unknown section      LS1042 unknown key      LS1043 wrong type
//   LS1044 out of range                LS1045 none of the choices  LS1046 cannot be read
//   LS1048 `extends` in a circle or out of its folder
// with all problems of all files in one message, each with file, line, column and the source line. A file that does
// not exist is DataError LS1203.
LoadedConfig load_config(const std::vector<std::filesystem::path>& files, const std::vector<Override>& overrides);

// The same from text; `name` stands for the file in messages and origins. `extends` is refused.
LoadedConfig load_config_text(std::string_view text, std::string_view name);

// Every key with its origin as a comment. Loads again to an identical configuration: it is both config.resolved.toml
// and the form in which a configuration travels to other processes.
std::string resolved_toml(const LoadedConfig& loaded);

}  // namespace lockstep::config
