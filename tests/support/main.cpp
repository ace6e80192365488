// The main function of a room's test program:
//     engine_tests [<file>...] [--gtest_...]    runs the tests of these source files (`executor_test`); without any, all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace {

std::string file_of(const testing::TestInfo& test) {
  return std::filesystem::path(test.file()).stem().string();
}

std::vector<const testing::TestInfo*> tests_of(const testing::TestSuite& suite) {
  std::vector<const testing::TestInfo*> tests;
  for (int i = 0; i < suite.total_test_count(); ++i) tests.push_back(suite.GetTestInfo(i));
  return tests;
}

std::vector<const testing::TestSuite*> suites() {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::vector<const testing::TestSuite*> found;
  for (int i = 0; i < all.total_test_suite_count(); ++i) found.push_back(all.GetTestSuite(i));
  return found;
}

// What --gtest_filter excludes, so that of the files only these run.
std::string all_but(const std::set<std::string>& files) {
  std::string patterns;
  for (const testing::TestSuite* suite : suites()) {
    const std::vector<const testing::TestInfo*> tests = tests_of(*suite);
    const auto wanted = [&](const testing::TestInfo* test) { return files.contains(file_of(*test)); };
    if (std::ranges::none_of(tests, wanted)) {
      patterns += std::string(suite->name()) + ".*:";
      continue;
    }
    for (const testing::TestInfo* test : tests)
      if (!wanted(test)) patterns += std::string(suite->name()) + "." + test->name() + ":";
  }
  return patterns;
}

// A test in a header belongs to no file that could be named, so that no ctest would run it.
bool each_has_a_file(std::set<std::string>& files) {
  for (const testing::TestSuite* suite : suites())
    for (const testing::TestInfo* test : tests_of(*suite)) {
      files.insert(file_of(*test));
      if (file_of(*test).ends_with("_test")) continue;
      std::fprintf(stderr, "%s.%s is in %s: write it into a file *_test.cpp, or make each file that includes it a program "
                   "of its own (cmake/room_tests.cmake)\n", suite->name(), test->name(), test->file());
      return false;
    }
  return true;
}

}  // namespace

int main(int count, char** values) {
  testing::InitGoogleTest(&count, values);
  const std::set<std::string> wanted(values + 1, values + count);
  std::set<std::string> files;
  if (!wanted.empty()) {
    if (!each_has_a_file(files)) return 2;
    for (const std::string& file : wanted)
      if (!files.contains(file)) {
        std::fprintf(stderr, "this program has no tests of a file %s.cpp\n", file.c_str());
        return 2;
      }
    const std::string filter = GTEST_FLAG_GET(filter);
    GTEST_FLAG_SET(filter, filter + (filter.find('-') == std::string::npos ? "-" : ":") + all_but(wanted));
  }
  return RUN_ALL_TESTS();
}
