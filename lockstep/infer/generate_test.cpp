#include "lockstep/infer/generate.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::infer {
namespace {

TEST(Generate, RefusesExpertsThatChooseTheirTokens) {
  arch::ModelConfig model;
  EXPECT_NO_THROW(check_generates(model));
  model.experts = {.count = 8, .per_token = 2, .ffn = 32, .router = config::Router::kSoftmaxAfterTopk};
  EXPECT_NO_THROW(check_generates(model));
  model.experts.router = config::Router::kExpertChoice;
  try {
    check_generates(model);
    FAIL() << "not refused";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message().code, "LS1340");
  }
}

}  // namespace
}  // namespace lockstep::infer
