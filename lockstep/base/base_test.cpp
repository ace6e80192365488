#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "lockstep/base/check.h"
#include "lockstep/base/file.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/base/random.h"
#include "lockstep/base/units.h"
#include "support/folders.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

fs::path fresh_folder(const std::string& name) { return support::fresh_folder("base-" + name); }

// Known answers published with the Random123 library.
TEST(Random, PhiloxKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, AnySplitOfARangeGivesTheSameValues) {
  const RandomStream stream(7, "init/a");
  std::vector<float> whole(1003);
  stream.normal(5, whole);
  for (const size_t cut : {1u, 2u, 3u, 500u, 1002u}) {
    std::vector<float> parts(whole.size());
    stream.normal(5, std::span(parts).first(cut));
    stream.normal(5 + cut, std::span(parts).subspan(cut));
    EXPECT_EQ(parts, whole) << "cut " << cut;
  }
}

TEST(Random, NormalHasTheMomentsOfTheNormalDistribution) {
  std::vector<float> values(200000);
  RandomStream(1, "moments").normal(0, values);
  double sum = 0, squares = 0, fourth = 0;
  for (const double v : values) {
    sum += v;
    squares += v * v;
    fourth += v * v * v * v;
  }
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
}

TEST(Random, SeedAndNameSeparateStreams) {
  EXPECT_NE(RandomStream(1, "a").bits(0), RandomStream(2, "a").bits(0));
  EXPECT_NE(RandomStream(1, "a").bits(0), RandomStream(1, "b").bits(0));
  EXPECT_NE(RandomStream(1, "a").bits(0), RandomStream(1, "a").bits(1));
}

TEST(Units, BothWays) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(25.0 * kMiB), "25.0 MiB");
  EXPECT_EQ(parse_bytes("25MiB"), 25 * kMiB);
  EXPECT_EQ(parse_bytes("1.5 GiB"), 3 * kGiB / 2);
  EXPECT_EQ(parse_bytes("12 parsec"), std::nullopt);
  EXPECT_EQ(parse_bytes("-3"), std::nullopt);
  EXPECT_EQ(parse_duration("30min"), 1800.0);
  EXPECT_EQ(parse_duration("3h50m"), 13800.0);
  EXPECT_EQ(parse_duration("30"), std::nullopt);
  EXPECT_EQ(format_duration(5940), "1h39m");
  EXPECT_EQ(format_duration(0.09), "90 ms");
  EXPECT_EQ(format_count(412345), "412k");
}

TEST(Text, ANumberIsTheWholeText) {
  EXPECT_EQ(parse_number<int>("12"), 12);
  EXPECT_EQ(parse_number<int64_t>("-3"), -3);
  EXPECT_EQ(parse_number<double>("1e-3"), 1e-3);
  for (const char* text : {"", " 1", "1 ", "5x", "+1", "99999999999"}) EXPECT_FALSE(parse_number<int>(text)) << text;
}

TEST(Text, NearestName) {
  EXPECT_EQ(nearest("stpes", {"seed", "steps", "seq_len"}), "steps");
  EXPECT_EQ(nearest("completely_else", {"seed", "steps"}), "");
}

TEST(Check, PrintsBothValues) {
  try {
    LOCKSTEP_CHECK_EQ(2 + 2, 5, "while counting");
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("2 + 2 (4) == 5 (5) while counting"));
  }
}

TEST(File, MissingFileNamesTheNearest) {
  const fs::path folder = fresh_folder("missing");
  write_file(folder / "austen.idx", "x");
  EXPECT_EQ(read_file(folder / "austen.idx"), "x");
  try {
    read_file(folder / "austin.idx");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(error.message().code, "LS1203");
    EXPECT_THAT(error.what(), HasSubstr("nearest is"));
    EXPECT_THAT(error.what(), HasSubstr("austen.idx"));
  }
}

TEST(File, WriteReplacesAsAWhole) {
  const fs::path folder = fresh_folder("replace");
  write_file(folder / "a", "one");
  write_file(folder / "a", "two");
  EXPECT_EQ(read_file(folder / "a"), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  EXPECT_THROW(write_file(folder / "none" / "a", "x"), EnvironmentError);
}

TEST(JsonText, DuplicateKeysAndDeepNestingAreRefused) {
  EXPECT_EQ(parse_json(R"({"a": [1, 2]})", "here").at("a").size(), 2u);
  EXPECT_THROW(parse_json(R"({"a": 1, "a": 2})", "here"), DataError);
  EXPECT_THROW(parse_json(R"({"a": )", "here"), DataError);
  EXPECT_THROW(parse_json(std::string(1000, '['), "here"), DataError);
}

TEST(LogFile, HoldsTheLines) {
  const fs::path folder = fresh_folder("log");
  {
    Log log({.file = folder / "logs" / "rank-0000.log"});
    log.info("hello {}");
  }
  EXPECT_THAT(read_file(folder / "logs" / "rank-0000.log"), HasSubstr("hello {}"));
}

TEST(Hash, IsXxh3) { EXPECT_EQ(hash_text(hash64("")), "2d06800538d394c2"); }

}  // namespace
}  // namespace lockstep
