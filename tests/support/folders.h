// Places for the files of a test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace lockstep::support {

// A path below the folder for temporary files. Tests run beside each other: the name is this test's own.
inline std::filesystem::path place(const std::string& name) {
  return std::filesystem::path(::testing::TempDir()) / ("lockstep-" + name);
}

// The same without what an earlier run has left there: nothing.
inline std::filesystem::path fresh_place(const std::string& name) {
  std::filesystem::remove_all(place(name));
  return place(name);
}

// An empty folder there.
inline std::filesystem::path fresh_folder(const std::string& name) {
  std::filesystem::create_directories(fresh_place(name));
  return place(name);
}

// An empty folder of this process alone, until the end of the scope.
class ScopedFolder {
 public:
  explicit ScopedFolder(const std::string& name) : path_(fresh_folder(name + "-" + std::to_string(::getpid()))) {}
  ~ScopedFolder() { std::filesystem::remove_all(path_); }
  ScopedFolder(const ScopedFolder&) = delete;
  ScopedFolder& operator=(const ScopedFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  const std::filesystem::path path_;
};

}  // namespace lockstep::support
