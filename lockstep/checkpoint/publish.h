// Puts a written step into its place. At every moment the folder holds a whole step of that number, old or new, where it held
// one before: a kill between any two system calls loses nothing, and what it leaves half done is ended by repair_steps().
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace lockstep::checkpoint {

// "step-00001200.new": a whole step that is about to take the place of step-00001200. Readers prefer it where it is whole.
inline constexpr const char* kNewSuffix = ".new";

struct PublishOptions {
  bool exchange = true;  // renameat2(RENAME_EXCHANGE); false: as on a file system that lacks it
  // Seam for tests: called before each system call that changes the folder, with its name.
  std::function<void(const char* call)> before{};
};

// Renames `temporary`, a whole step in the folder of `place`, to `place`. Where there is a step already, the two change
// places in one call and the old one is removed; without such a call the new one stands beside it as step-N.new until the old
// one is away. EnvironmentError LS3101 with the system's reason.
void publish_step(const std::filesystem::path& temporary, const std::filesystem::path& place, const PublishOptions& options = {});

// Ends every replacement in `directory` that was interrupted; for whoever holds the run. Nothing where it does not exist.
void repair_steps(const std::filesystem::path& directory, const PublishOptions& options = {});

// Points the link `latest`, which is for people alone, at the step called `name`. Returns "" or why it could not, as one line.
std::string point_latest(const std::filesystem::path& directory, const std::string& name);

}  // namespace lockstep::checkpoint
