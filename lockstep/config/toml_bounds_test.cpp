// Files that a recursive parser cannot be given, and files that only look like them.
#include "lockstep/config/toml_bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "lockstep/config/test_refusals.h"

namespace lockstep::config {
namespace {

using config::testing::read;
using config::testing::refusal;
using ::testing::HasSubstr;

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(TomlBounds, KeysOfManyPartsAreRefused) {
  for (const std::string& text : {repeated("a.", 40'000) + "a = 1", "[" + repeated("a.", 40'000) + "a]", "[[" + repeated("a . ", 40'000) + "a]]",
                                  "x = {" + repeated("\"a.b\".", 40'000) + "a = 1}", repeated("'a'\t.", 33) + "a = 1"})
    EXPECT_THAT(refusal(text), HasSubstr("run.toml:1:")) << text.substr(0, 40);
  EXPECT_THAT(refusal("[train]\n" + repeated("a.", 40'000) + "a = 1"), HasSubstr("run.toml:2:64: error LS1040: a key of more than 32 parts"));
}

TEST(TomlBounds, DeepArraysAndTablesAreRefused) {
  for (const char* open : {"[", "{a=", "[\n", "[{a=["})
    EXPECT_THAT(refusal("[train]\nx = " + repeated(open, 100'000)), HasSubstr("error LS1040: arrays and tables more than 32 deep"));
}

TEST(TomlBounds, WhatStandsInTextOrACommentIsNoKey) {
  const std::string dots = repeated("a.", 1000) + repeated("[", 1000);
  for (const std::string& value : {"\"" + dots + "\"", "'" + dots + "'", "\"\"\"x\n" + dots + "\"\"\"", "'''\n" + dots + "'''",
                                   "\"\\\"" + dots + "\"", "\"\"\"\"" + dots + "\\\"\"\"\"\"", "\"\" # " + dots, "'''" + dots + "'''''"})
    EXPECT_EQ(refusal("[run]\nname = " + value + "\n"), "accepted") << value.substr(0, 20);
  EXPECT_EQ(read("[run]\nname = \"\"\"" + dots + "\"\"\"\n").run.name, dots);
  EXPECT_FALSE(too_deep("x = [" + repeated("1.5, ", 1000) + "1]"));
  EXPECT_FALSE(too_deep(repeated("[a.b]\nc.d = 1.5\n", 1000)));
}

TEST(TomlBounds, LargeFilesAreRefused) {
  EXPECT_THAT(refusal(std::string(kMostTomlBytes + 1, ' ')), HasSubstr("LS1040: the file has 16777217 bytes"));
}

// Text made of what TOML is made of: it is read or refused, whatever it says.
TEST(TomlBounds, AnyTextIsReadOrRefused) {
  const std::vector<std::string> words = {"[",  "]",   "{",   "}",  "=",  ".",     ",",    "\n", "\"", "'",    "\"\"\"", "'''", "#",
                                          "\\", "a",   "1",   " ",  "[[", "train", "true", "-",  "_",  "0x",   "1e9",    "\t",  "\r\n"};
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (unsigned length = random() % 60, k = 0; k < length; ++k) text += repeated(words[random() % words.size()], random() % 8 ? 1 : 20);
    try {
      load_config_text(text, "run.toml");
    } catch (const ConfigError& error) {
      EXPECT_FALSE(error.message().code.empty());
    }
  }
}

}  // namespace
}  // namespace lockstep::config
