// Invariants. LOCKSTEP_CHECK(condition, parts...) and LOCKSTEP_CHECK_EQ(a, b, parts...) throw InternalError with file,
// line, both values and the parts. They stay on in release builds and are never reachable by user input.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

#define LOCKSTEP_CHECK(condition, ...)                                                                           \
  do {                                                                                                           \
    if (!(condition)) [[unlikely]]                                                                               \
      throw ::lockstep::InternalError(::lockstep::cat(__FILE__, ":", __LINE__, ": check failed: ", #condition,   \
                                                      " " __VA_OPT__(, ) __VA_ARGS__));                          \
  } while (false)

#define LOCKSTEP_CHECK_EQ(left, right, ...)                                                                      \
  do {                                                                                                           \
    const auto& left_value_ = (left);                                                                            \
    const auto& right_value_ = (right);                                                                          \
    if (!(left_value_ == right_value_)) [[unlikely]]                                                             \
      throw ::lockstep::InternalError(::lockstep::cat(__FILE__, ":", __LINE__, ": check failed: ", #left, " (",  \
                                                      left_value_, ") == ", #right, " (", right_value_, ") "     \
                                                      __VA_OPT__(, ) __VA_ARGS__));                              \
  } while (false)
