#include "lockstep/engine/disk_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::engine {
namespace {

using ::testing::HasSubstr;

std::filesystem::path folder() { return std::filesystem::path(::testing::TempDir()) / cat("disk_tier_", getpid()) / "below"; }

std::vector<char> numbered(size_t size, char first) {
  std::vector<char> bytes(size);
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

template <typename E>
E error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const E& error) {
    return error;
  }
  throw std::runtime_error("nothing was thrown");
}

// While it lives no file grows beyond `bytes`: to the tier a disk that is full.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(DiskTier, GivesBackWhatWasWrittenLast) {
  DiskTier tier(folder(), 0, {{"a", 5000}, {"b", 1}, {"c", 100000}});
  EXPECT_EQ(tier.bytes(), 8192 + 4096 + 102400);  // whole pages
  const std::vector<char> a = numbered(5000, 1), b = numbered(1, 7), c = numbered(100000, 3), again = numbered(5000, 9);
  tier.write(2, c.data());
  tier.write(0, a.data());
  tier.write(1, b.data());
  std::vector<char> read(100000);
  tier.read(2, read.data());
  EXPECT_EQ(read, c);
  tier.write(0, again.data());
  read.resize(5000);
  tier.read(0, read.data());
  EXPECT_EQ(read, again);
  read.resize(1);
  tier.read(1, read.data());
  EXPECT_EQ(read, b);
}

// Two runs that share a folder do not share a file, and none is left.
TEST(DiskTier, EachHasAFileOfItsOwnThatIsGoneAfterwards) {
  DiskTier one(folder(), 0, {{"a", 10}}), other(folder(), 0, {{"a", 10}});
  EXPECT_NE(one.path(), other.path());
  const std::vector<char> mine = numbered(10, 1), theirs = numbered(10, 50);
  one.write(0, mine.data());
  other.write(0, theirs.data());
  std::vector<char> read(10);
  one.read(0, read.data());
  EXPECT_EQ(read, mine);
  EXPECT_TRUE(std::filesystem::is_empty(folder()));
}

TEST(DiskTier, NamesWhatIsDamaged) {
  DiskTier tier(folder(), 3, {{"embed optimizer", 100}, {"blocks.0 optimizer", 100000}});
  const std::vector<char> bytes = numbered(100000, 1);
  tier.write(0, bytes.data());
  tier.write(1, bytes.data());
  std::vector<char> read(100000);
  ASSERT_EQ(pwrite(tier.descriptor(), "x", 1, 4096 + 70000), 1);  // altered
  const auto altered = error_of<EnvironmentError>([&] { tier.read(1, read.data()); });
  EXPECT_EQ(altered.message().code, "LS4013");
  EXPECT_THAT(altered.message().what, HasSubstr("blocks.0 optimizer"));
  EXPECT_THAT(altered.message().what, HasSubstr("at byte 4096 of " + tier.path().string()));
  EXPECT_THAT(altered.message().way_out, HasSubstr("checkpoint is good"));
  ASSERT_EQ(ftruncate(tier.descriptor(), 50000), 0);  // torn
  EXPECT_THAT(error_of<EnvironmentError>([&] { tier.read(1, read.data()); }).message().what, HasSubstr("ends after 45904 bytes"));
  tier.read(0, read.data());  // the other unit is whole
  EXPECT_TRUE(std::equal(read.begin(), read.begin() + 100, bytes.begin()));
}

TEST(DiskTier, FindsAFullDiskBeforeTheFirstStep) {
  const SmallDisk disk(100000);
  const auto full = error_of<OutOfMemoryError>([&] { DiskTier(folder(), 0, {{"a", 3 << 20}}); });
  EXPECT_EQ(full.message().code, "LS4011");
  EXPECT_EQ(full.exit_code(), ExitCode::kOutOfMemory);
  EXPECT_THAT(full.message().what, HasSubstr("3.00 MiB"));
  EXPECT_THAT(full.message().what, HasSubstr("are free"));
  EXPECT_THAT(full.message().way_out, HasSubstr("memory.disk_path"));
}

// Some file systems have less room than they reserved: a write that falls short says how far it came.
TEST(DiskTier, FindsAFullDiskAtAWrite) {
  DiskTier tier(folder(), 0, {{"a", 200000}});
  const std::vector<char> bytes = numbered(200000, 1);
  ASSERT_EQ(ftruncate(tier.descriptor(), 0), 0);
  const SmallDisk disk(65536);
  const auto full = error_of<OutOfMemoryError>([&] { tier.write(0, bytes.data()); });
  EXPECT_EQ(full.message().code, "LS4011");
  EXPECT_THAT(full.message().what, HasSubstr("beyond byte 65536"));
  EXPECT_THAT(full.message().way_out, HasSubstr("start again to resume"));
}

TEST(DiskTier, RefusesAFolderThatCannotBeMade) {
  const auto refused = error_of<EnvironmentError>([&] { DiskTier("/dev/null/below", 0, {{"a", 10}}); });
  EXPECT_EQ(refused.message().code, "LS4012");
  EXPECT_THAT(refused.message().what, HasSubstr("/dev/null/below"));
}

}  // namespace
}  // namespace lockstep::engine
