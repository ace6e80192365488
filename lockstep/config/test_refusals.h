// What is refused of a configuration's text, as the user reads it; for the tests of this room.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/config/check.h"
#include "lockstep/config/load.h"

namespace lockstep::config::testing {

inline RunConfig read(std::string_view text) { return load_config_text(text, "run.toml").config; }

inline std::string refusal(std::string_view text) {
  try {
    load_config_text(text, "run.toml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

// What a world of `ranks` refuses of the text; one global batch of 48 fits them all.
inline std::string layout_refusal(const std::string& text, int ranks) {
  LoadedConfig loaded = load_config_text(text, "run.toml");
  loaded.config.train.global_batch = 48;
  loaded.config.train.micro_batch = 1;
  try {
    check_layout(loaded, ranks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

struct Refused {
  const char* text;
  int ranks;
  const char* place;
  const char* what;
  const char* way_out;
};

inline void expect_refused(const Refused& refused) {
  const std::string message = layout_refusal(refused.text, refused.ranks);
  EXPECT_THAT(message, ::testing::HasSubstr("LS1101: this layout does not fit the launch")) << refused.text;
  for (const char* part : {refused.place, refused.what, refused.way_out})
    EXPECT_THAT(message, ::testing::HasSubstr(part)) << refused.text;
}

// As expect_refused, and nothing beside it.
inline void expect_refused_alone(const Refused& refused) {
  EXPECT_THAT(layout_refusal(refused.text, refused.ranks), ::testing::HasSubstr("(1 problem,")) << refused.text;
  expect_refused(refused);
}

}  // namespace lockstep::config::testing
