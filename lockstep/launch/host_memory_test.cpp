// Memory of a host, read from made-up trees of /proc and cgroups.
#include "lockstep/launch/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;

class HostMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / cat("lockstep-host-memory-", ::getpid());
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal:       25165824 kB\nMemFree:         1048576 kB\nMemAvailable:   8388608 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  // A cgroup of v2 with limit, use and what of it are pages of files, in GiB.
  void cgroup2(const std::string& folder, const std::string& limit, int64_t current, int64_t files) const {
    write(folder + "/memory.max", limit + "\n");
    write(folder + "/memory.current", cat(current * kGiB, "\n"));
    write(folder + "/memory.stat", cat("anon 5\ninactive_file ", files * kGiB / 2, "\nactive_file ", files * kGiB / 2, "\nslab_reclaimable 0\n"));
  }
  void cgroup1(const std::string& folder, int64_t limit, int64_t usage) const {
    write(folder + "/memory.limit_in_bytes", cat(limit, "\n"));
    write(folder + "/memory.usage_in_bytes", cat(usage, "\n"));
    write(folder + "/memory.stat", cat("cache 7\ninactive_file 1\ntotal_inactive_file ", kGiB, "\ntotal_active_file 0\n"));
  }
  int64_t available() const { return host_memory(root_)->available; }

  fs::path root_;
};

constexpr const char* kUnified = "25 20 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

TEST_F(HostMemoryTest, WithoutCgroupsIsWhatTheKernelSays) {
  EXPECT_EQ(available(), 8 * kGiB);
  EXPECT_EQ(host_memory(root_)->source, "MemAvailable of /proc/meminfo");
  fs::remove(root_ / "proc/meminfo");
  EXPECT_FALSE(host_memory(root_));
}

TEST_F(HostMemoryTest, TheNearestLimitOfAllCgroupsAroundCounts) {
  write("proc/self/cgroup", "0::/slice/job/step\n");
  write("proc/self/mountinfo", cat("24 20 0:21 / /proc rw - proc proc rw\n", kUnified));
  cgroup2("sys/fs/cgroup/slice/job/step", "max", 1, 0);
  cgroup2("sys/fs/cgroup/slice/job", cat(6 * kGiB), 5, 2);  // 2 of the 5 give way
  cgroup2("sys/fs/cgroup/slice", cat(20 * kGiB), 5, 0);
  EXPECT_EQ(available(), 3 * kGiB);
  EXPECT_EQ(host_memory(root_)->source, "cgroup /slice/job: limit 6.00 GiB, 3.00 GiB in use");
  cgroup2("sys/fs/cgroup/slice", cat(20 * kGiB), 19, 0);
  EXPECT_EQ(available(), 1 * kGiB);
  cgroup2("sys/fs/cgroup/slice", cat(20 * kGiB), 21, 0);  // lowered under what is in use
  EXPECT_EQ(available(), 0);
}

TEST_F(HostMemoryTest, InAContainerTheTopOfWhatIsMounted) {
  write("proc/self/cgroup", "0::/\n");  // a namespace of its own
  write("proc/self/mountinfo", kUnified);
  cgroup2("sys/fs/cgroup", cat(4 * kGiB), 1, 0);
  EXPECT_EQ(available(), 3 * kGiB);
  // The host's path of a container's cgroup, of which the mount is the top; v1, and a folder with a space.
  write("proc/self/cgroup", "5:cpu:/\n4:memory,hugetlb:/docker/abc\n0::/docker/abc\n");
  write("proc/self/mountinfo", "30 20 0:30 /docker/abc /sys/fs/my\\040cgroup ro - cgroup cgroup rw,memory,hugetlb\n");
  cgroup1("sys/fs/my cgroup", 3 * kGiB, 2 * kGiB);
  EXPECT_EQ(available(), 2 * kGiB);
  EXPECT_EQ(host_memory(root_)->source, "cgroup /: limit 3.00 GiB, 1.00 GiB in use");
}

TEST_F(HostMemoryTest, OfBothVersionsTheOneThatCountsMemory) {
  write("proc/self/cgroup", "4:memory:/job\n2:cpu:/other\n0::/\n");
  write("proc/self/mountinfo", "30 20 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                               "31 20 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  fs::create_directories(root_ / "sys/fs/cgroup/unified");
  cgroup1("sys/fs/cgroup/memory/job", 5 * kGiB, 2 * kGiB);
  cgroup1("sys/fs/cgroup/memory", 9223372036854771712, 9 * kGiB);  // no limit
  EXPECT_EQ(available(), 4 * kGiB);
}

TEST_F(HostMemoryTest, KillsAreThoseOfTheCgroupElseOfTheMachine) {
  write("proc/vmstat", "nr_free_pages 7\noom_kill 3\n");
  write("proc/self/cgroup", "0::/job\n");
  write("proc/self/mountinfo", kUnified);
  cgroup2("sys/fs/cgroup/job", "max", 1, 0);
  write("sys/fs/cgroup/job/memory.events", "low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\noom_group_kill 0\n");
  const MemoryKills before = memory_kills(root_);
  EXPECT_EQ(before.cgroup, 1);
  EXPECT_EQ(before.host, 3);
  EXPECT_EQ(kills_text(before, before), "");
  write("proc/vmstat", "oom_kill 5\n");
  EXPECT_EQ(kills_text(before, memory_kills(root_)),
            "the kernel ended 2 processes of this machine because memory was short (oom_kill 3 -> 5)");
  write("sys/fs/cgroup/job/memory.events", "oom_kill 2\n");
  EXPECT_EQ(kills_text(before, memory_kills(root_)),
            "the kernel ended 1 process of cgroup /job because memory was short (oom_kill 1 -> 2)");
  write("proc/self/cgroup", "4:memory:/old\n");
  write("proc/self/mountinfo", "30 20 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  cgroup1("sys/fs/cgroup/memory/old", 5 * kGiB, 2 * kGiB);
  write("sys/fs/cgroup/memory/old/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 8\n");
  EXPECT_EQ(memory_kills(root_).cgroup, 8);
}

TEST(HostMemory, OfThisMachineIsMoreThanNothing) {
  const auto memory = host_memory();
  ASSERT_TRUE(memory);
  EXPECT_GT(memory->available, kMiB);
}

}  // namespace
}  // namespace lockstep::launch
