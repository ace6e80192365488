#include "lockstep/train/same_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/data/token_file.h"
#include "support/run_ranks.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

// What each rank of n throws; "" where nothing.
std::vector<std::string> said(int n, const std::function<std::vector<Fact>(int rank)>& facts) {
  std::vector<std::string> all(static_cast<size_t>(n));
  testing::run_ranks(n, [&](comm::World& world) {
    try {
      require_same_job(world, facts(world.rank()));
    } catch (const ConfigError& error) {
      all[static_cast<size_t>(world.rank())] = error.what();
    }
  });
  return all;
}

config::LoadedConfig loaded(const std::string& overrides) {
  std::vector<config::Override> list;
  for (const std::string& word : split(overrides, ' '))
    if (const size_t equals = word.find('='); equals != std::string::npos)
      list.push_back({.key = word.substr(0, equals), .value = word.substr(equals + 1)});
  return config::load_config({}, list);
}

TEST(SameJob, EqualRanksGoOn) {
  for (const std::string& text : said(3, [](int) { return config_facts(loaded("optimizer.lr=1e-4 parallel.tp=2")); }))
    EXPECT_EQ(text, "");
}

TEST(SameJob, AllRanksSayWhichValuesWhoseAndFromWhere) {
  const auto all = said(4, [](int rank) {
    return config_facts(loaded(rank == 2 ? "optimizer.lr=1e-1 train.seed=99" : "optimizer.lr=1e-4"));
  });
  for (const std::string& text : all) {
    EXPECT_EQ(text, all[0]);
    EXPECT_THAT(text, HasSubstr("error LS1103"));
    EXPECT_THAT(text, HasSubstr("optimizer.lr: 1e-04 on ranks 0-1,3 (--optimizer.lr, on "));
    EXPECT_THAT(text, HasSubstr("; 0.1 on rank 2 (--optimizer.lr, on "));
    EXPECT_THAT(text, HasSubstr("train.seed: 1234 on ranks 0-1,3 (default, on "));
    EXPECT_THAT(text, HasSubstr("; 99 on rank 2 (--train.seed, on "));
  }
}

// Layouts, element types and backends make other calls: the comparison does not.
TEST(SameJob, NothingOfTheConfigurationChangesTheCalls) {
  for (const char* other : {"parallel.tp=2", "parallel.pp=2", "train.precision=bf16", "parallel.backend=mpi", "parallel.zero=3"})
    for (const std::string& text : said(2, [&](int rank) { return config_facts(loaded(rank == 0 ? "train.seed=1234" : other)); }))
      EXPECT_THAT(text, HasSubstr(cat("  ", std::string(other).substr(0, std::string(other).find('=')), ": ")));
}

TEST(SameJob, WhatMayDifferMay) {
  const auto all = said(2, [](int rank) { return config_facts(loaded(cat("train.threads=", rank + 1, " memory.disk_path=/scratch", rank))); });
  EXPECT_EQ(all[0] + all[1], "");
  for (const config::Section& section : config::sections())
    for (const config::Field& field : section.fields) {
      const std::vector<Fact> facts = config_facts(loaded(""));
      const bool compared = std::any_of(facts.begin(), facts.end(), [&](const Fact& fact) { return fact.name == field.key(); });
      EXPECT_EQ(compared, field.may_differ.empty()) << field.key();
    }
}

TEST(SameJob, AFactThatARankDoesNotKnow) {
  const auto all = said(2, [](int rank) {
    std::vector<Fact> facts(1);
    facts[0].name = rank == 0 ? "a" : "b";
    facts[0].value = cat(rank + 1);
    return facts;
  });
  EXPECT_THAT(all[1], HasSubstr("a: 1 on rank 0"));
  EXPECT_THAT(all[1], HasSubstr("b: not set on rank 0"));
}

TEST(SameJob, TheListHasABound) {
  const auto all = said(2, [](int rank) {
    std::vector<Fact> facts;
    for (int i = 0; i < 50; ++i) facts.push_back({.name = cat("fact ", i), .value = cat(std::string(1000, 'x'), rank)});
    return facts;
  });
  EXPECT_THAT(all[0], HasSubstr("  and 42 more\n"));
  EXPECT_THAT(all[0], Not(HasSubstr("fact 8:")));
  EXPECT_LT(all[0].size(), 4000u);
}

class Contents : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string identity(const std::string& name) { return content_facts("it", folder_ / name).at(0).value; }

  fs::path folder_ = fs::temp_directory_path() / cat("lockstep-same-job-", getpid());
};

TEST_F(Contents, AreComparedWhereverTheyLie) {
  write_file(folder_ / "a.json", "{}");
  write_file(folder_ / "b.json", "{}");
  write_file(folder_ / "c.json", "[]");
  EXPECT_EQ(identity("a.json"), identity("b.json"));
  EXPECT_NE(identity("a.json"), identity("c.json"));
  EXPECT_THAT(identity("a.json"), HasSubstr("2 bytes, xxh3 "));
  EXPECT_THAT(identity("none.json"), HasSubstr("no such file"));
}

TEST_F(Contents, OfLargeFilesAreSampled) {
  std::string bytes(3'000'001, 'x');
  write_file(folder_ / "a.bin", bytes);
  EXPECT_THAT(identity("a.bin"), HasSubstr("3000001 bytes, xxh3 of samples "));
  bytes.back() = 'y';
  write_file(folder_ / "b.bin", bytes);
  EXPECT_NE(identity("a.bin"), identity("b.bin"));
  write_file(folder_ / "a.idx", bytes);
  bytes[1'234'567] = 'z';
  write_file(folder_ / "b.idx", bytes);
  EXPECT_NE(identity("a.idx"), identity("b.idx"));  // from end to end
}

TEST_F(Contents, OfAModelDirectoryAreItsFiles) {
  for (const char* name : {"config.json", "model.safetensors", "README.md"}) write_file(folder_ / name, name);
  const std::vector<Fact> facts = content_facts("model.from", folder_);
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_EQ(facts[0].name, "model.from: config.json");
  EXPECT_EQ(facts[1].name, "model.from: model.safetensors");
}

TEST_F(Contents, OtherDataIsRefusedWhateverItsPath) {
  for (const int rank : {0, 1}) {
    data::TokenFileWriter writer(folder_ / cat("tokens", rank), 512);
    for (const int32_t id : {1, 2, 3 + rank}) writer.add_document(std::vector<int32_t>(static_cast<size_t>(id), 7));
    writer.finish();
    fs::copy(data::bin_path(folder_ / "tokens0"), data::bin_path(folder_ / cat("copy", rank)));
    fs::copy(data::idx_path(folder_ / "tokens0"), data::idx_path(folder_ / cat("copy", rank)));
  }
  const auto with = [&](const std::string& name) {
    return said(2, [&, name](int rank) { return config_facts(loaded(cat("data.train=", (folder_ / name).string(), rank))); });
  };
  EXPECT_EQ(with("copy")[0], "");
  EXPECT_THAT(with("tokens")[0], HasSubstr("data.train: .bin: 12 bytes, xxh3 "));
  EXPECT_THAT(with("tokens")[0], HasSubstr(cat("on rank 1 (", (folder_ / "tokens1.idx").string())));
}

TEST(Versions, AreThoseThatRun) {
  const std::vector<Fact> facts = version_facts("1.2.3");
  EXPECT_EQ(facts[0].value, "1.2.3");
  EXPECT_THAT(facts[1].value, ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+.*"));
}

}  // namespace
}  // namespace lockstep::train
