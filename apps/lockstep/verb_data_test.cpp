// lockstep data, from the command line to the files it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "apps/lockstep/verbs.h"
#include "lockstep/base/file.h"
#include "lockstep/data/bpe_tokenizer.h"
#include "lockstep/data/token_file.h"
#include "support/folders.h"

namespace lockstep::apps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

const std::string kExcerpt = LOCKSTEP_SOURCE_DIR "/tests/fixtures/austen-64k.txt";

class DataVerb : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // What `lockstep data arguments...` prints on stdout; what it prints on stderr is in stderr_.
  std::string run(const std::vector<std::string>& arguments) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    std::string refused;
    try {
      EXPECT_EQ(verb_data(parse_command_line(find_verb("data"), arguments)), 0);
    } catch (const Error& error) {
      refused = error.message().code + " " + error.what();
    }
    stderr_ = ::testing::internal::GetCapturedStderr();
    const std::string printed = ::testing::internal::GetCapturedStdout();
    return refused.empty() ? printed : refused;
  }

  const fs::path folder_ = support::fresh_folder("verb-data");
  std::string stderr_;
};

TEST_F(DataVerb, FromTextToTokens) {
  EXPECT_THAT(run({"tokenizer", kExcerpt, "--vocab-size", "512", "--out", path("new/tokenizer.json")}),
              AllOf(HasSubstr("512 ids, 255 merges"), HasSubstr("65437 bytes"), HasSubstr("bytes/token")));
  EXPECT_EQ(stderr_, "");  // no progress where stderr is no terminal
  EXPECT_EQ(data::Tokenizer::load(path("new/tokenizer.json")).vocab_size(), 512);

  EXPECT_THAT(
      run({"prepare", kExcerpt, kExcerpt, "--tokenizer", path("new/tokenizer.json"), "--out", path("sub/train")}),
      AllOf(HasSubstr("documents       2\n"), HasSubstr("130874 bytes")));
  const data::TokenFile with_eod(path("sub/train"));
  run({"prepare", kExcerpt, kExcerpt, "--tokenizer", path("new/tokenizer.json"), "--out", path("plain"),
       "--no-append-eod"});
  EXPECT_EQ(data::TokenFile(path("plain")).num_tokens(), with_eod.num_tokens() - 2);

  EXPECT_THAT(run({"inspect", path("sub/train"), path("new/tokenizer.json")}),
              AllOf(HasSubstr("token data (Megatron .bin/.idx)"), HasSubstr("tokenizer (byte-level BPE)")));
}

TEST_F(DataVerb, SaysWhereTheTextIsTooShortForTheVocabulary) {
  write_file(path("a.txt"), "ab ab");
  run({"tokenizer", path("a.txt"), "--vocab-size", "1000", "--out", path("tokenizer.json")});
  EXPECT_THAT(stderr_, HasSubstr("merges for 259 ids only, 1000 were asked for"));
}

TEST_F(DataVerb, RefusesWhatIsMissingOrNotItsOwn) {
  EXPECT_THAT(run({}), AllOf(StartsWith("LS1004"), HasSubstr("tokenizer, prepare, inspect or demo")));
  EXPECT_THAT(run({"prepares", kExcerpt}), StartsWith("LS1004"));
  EXPECT_THAT(run({"tokenizer", "--out", path("t.json")}), HasSubstr("names no file"));
  EXPECT_THAT(run({"tokenizer", kExcerpt}), HasSubstr("needs --out"));
  EXPECT_THAT(run({"prepare", kExcerpt, "--out", path("x")}), HasSubstr("needs --tokenizer"));
  EXPECT_THAT(run({"inspect", kExcerpt, "--out", path("x")}), AllOf(StartsWith("LS1002"), HasSubstr("--out")));
  EXPECT_THAT(run({"tokenizer", kExcerpt, "--vocab-sise", "5"}),
              AllOf(StartsWith("LS1002"), HasSubstr("--vocab-size")));
  EXPECT_THAT(run({"tokenizer", kExcerpt, "--vocab-size", "many", "--out", path("t.json")}), StartsWith("LS1005"));
  EXPECT_THAT(run({"tokenizer", path("none.txt"), "--out", path("t.json")}), StartsWith("LS1203"));
  EXPECT_THAT(run({"demo", "a.txt", "--out", path("d")}), HasSubstr("takes no file"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

// Where the packages cannot be had, the script says so, ends with code 3 and leaves nothing half-made.
TEST_F(DataVerb, DemoTellsWhyItCannotFetch) {
  EXPECT_THAT(run({"demo"}), HasSubstr("needs --out"));
  write_file(path("apt-get"), "#!/bin/sh\necho 'E: no network in this test'\nexit 100\n");
  fs::permissions(path("apt-get"), fs::perms::owner_all);
  const std::string command = "PATH='" + folder_.string() +
                              "':\"$PATH\" bash " LOCKSTEP_SOURCE_DIR "/scripts/demo_corpus.sh '" + path("cache") +
                              "' 2>'" + path("message") + "'";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_THAT(read_file(path("message")), AllOf(HasSubstr("no network in this test"), HasSubstr("r-cran-janeaustenr"),
                                                HasSubstr("any text will do instead")));
  EXPECT_TRUE(fs::is_empty(path("cache")));
}

}  // namespace
}  // namespace lockstep::apps
