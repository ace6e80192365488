// What is said where the MPI plugin is missing or does not load, in folders made for it.
#include "lockstep/comm/mpi_plugin_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class MpiPluginFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-plugin-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string refusal(bool built_with_mpi) {
    try {
      load_mpi_plugin(folder_, built_with_mpi);
    } catch (const EnvironmentError& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path folder_;
};

TEST_F(MpiPluginFile, OfABuildWithoutMpiThePackageIsNamed) {
  EXPECT_THAT(refusal(false), AllOf(HasSubstr("LS3030"), HasSubstr("not part of this build"), HasSubstr("libopenmpi-dev")));
}

TEST_F(MpiPluginFile, ThatIsNotBesideTheLibraryIsNamedWithTheCommandThatBuildsIt) {
  EXPECT_THAT(refusal(true), AllOf(HasSubstr("LS3030"), HasSubstr((folder_ / "liblockstep_mpi.so").string()),
                                   HasSubstr("make build"), Not(HasSubstr("libopenmpi-dev"))));
}

TEST_F(MpiPluginFile, ThatDoesNotLoadIsRefusedInTheWordsOfTheLinker) {
  std::ofstream(folder_ / "liblockstep_mpi.so") << std::string(4096, 'x');
  EXPECT_THAT(refusal(true), AllOf(HasSubstr("does not load"), HasSubstr("invalid ELF header")));
}

}  // namespace
}  // namespace lockstep::comm
