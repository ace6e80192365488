// lockstep doctor on folders of programs and libraries made for each test: what it says where a piece is missing.
#include "apps/lockstep/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "lockstep/base/text.h"

namespace lockstep::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class Doctor : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "lockstep-doctor-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    fs::create_directories(root_ / "bin");
    here_ = {.path = (root_ / "bin").string(), .libraries = root_, .python = root_ / "bin/python"};
  }
  void TearDown() override { fs::remove_all(root_); }

  // A program that says `text` and ends with `code`.
  void program(const std::string& name, const std::string& text = "", int code = 0) {
    const fs::path file = root_ / "bin" / name;
    std::ofstream(file) << "#!/bin/sh\necho '" << text << "'\nexit " << code << "\n";
    fs::permissions(file, fs::perms::owner_all);
  }

  // It is missing, nothing that training on one machine needs, and this is said of it.
  static void expect_missing(const Finding& finding, const std::string& found, const std::string& mend) {
    EXPECT_FALSE(finding.ok) << finding.found;
    EXPECT_TRUE(finding.optional);
    EXPECT_THAT(finding.found, HasSubstr(found));
    EXPECT_THAT(finding.mend, HasSubstr(mend));
  }

  fs::path root_;
  Surroundings here_;
};

TEST_F(Doctor, MpiOfABuildWithoutIt) {
  expect_missing(mpi_plugin(here_), "not part of this build", "libopenmpi-dev");
}

TEST_F(Doctor, MpiPluginThatIsNotBesideTheLibrary) {
  here_.built_with_mpi = true;
  expect_missing(mpi_plugin(here_), (root_ / "liblockstep_mpi.so").string(), "make build");
  EXPECT_THAT(mpi_plugin(here_).mend, Not(HasSubstr("apt")));
}

TEST_F(Doctor, MpiPluginThatDoesNotLoad) {
  std::ofstream(root_ / "liblockstep_mpi.so") << std::string(4096, 'x');
  expect_missing(mpi_plugin(here_), "invalid ELF header", "make build");
}

TEST_F(Doctor, NcclOfABuildWithoutIt) { expect_missing(nccl_plugin(here_), "not part of this build", "preset cuda"); }

TEST_F(Doctor, Launcher) {
  expect_missing(mpi_launcher(here_), "not on the PATH", "openmpi-bin");
  program("mpirun");
  EXPECT_TRUE(mpi_launcher(here_).ok);
}

TEST_F(Doctor, CompilerAndWhatBuildsWithIt) {
  expect_missing(compiler(here_), "g++, cmake, ninja", "scripts/setup.sh");
  program("g++", "12.2.0");
  expect_missing(compiler(here_), "not on the PATH: cmake, ninja", "scripts/setup.sh");
  program("cmake");
  program("ninja");
  EXPECT_TRUE(compiler(here_).ok) << compiler(here_).found;
  program("g++", "9.4.0");
  expect_missing(compiler(here_), "9.4.0, older than 12", "scripts/setup.sh");
  program("g++", "cannot run", 1);
  expect_missing(compiler(here_), "cannot run", "scripts/setup.sh");
}

TEST_F(Doctor, PythonOfTheTests) {
  expect_missing(python_packages(here_), "no " + here_.python.string(), "scripts/setup.sh");
  // Without the folders of packages it finds none.
  std::ofstream(here_.python) << "#!/bin/sh\nexec python3 -I -S \"$@\"\n";
  fs::permissions(here_.python, fs::perms::owner_all);
  expect_missing(python_packages(here_), "numpy missing, transformers missing", "scripts/setup.sh");
  program("python");
  std::ofstream(here_.python) << "#!/bin/sh\nexit 0\n";
  EXPECT_TRUE(python_packages(here_).ok) << python_packages(here_).found;
}

TEST_F(Doctor, Browser) {
  expect_missing(browser(here_), "chromium", "apt install chromium");
  program("google-chrome");
  EXPECT_TRUE(browser(here_).ok);
}

TEST_F(Doctor, ProgramsThatMakeTwoHosts) {
  expect_missing(network_namespaces(here_), "not on the PATH: ip, unshare", "scripts/setup.sh");
  program("ip");
  expect_missing(network_namespaces(here_), "not on the PATH: unshare", "scripts/setup.sh");
}

TEST_F(Doctor, AProgramIsAFileThatMayBeExecuted) {
  std::ofstream(root_ / "bin/chromium") << "text";
  fs::create_directories(root_ / "bin/google-chrome");
  EXPECT_FALSE(browser(here_).ok);
  EXPECT_EQ(find_on_path(cat("/nowhere:", here_.path), "chromium"), fs::path());
}

}  // namespace
}  // namespace lockstep::apps
