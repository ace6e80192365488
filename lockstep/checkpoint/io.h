// Files by descriptor: positioned reads, and writes that reach the disk. A link or anything but a regular file is
// refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

class InputFile {
 public:
  // DataError LS1203 where there is none, LS1204 where it is no regular file or cannot be opened.
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }
  // Bytes [offset, offset + size); DataError LS1204 where the file ends before or the disk fails.
  void read(uint64_t offset, void* out, size_t size) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// Told what is being done, "writing .../shard-00001-model-00001-of-00001.safetensors", again and again while it goes on.
// "" = waiting for the other ranks. May be empty.
using Progress = std::function<void(const std::string& doing)>;

// A new file, written front to back. EnvironmentError LS3101 with the system's reason on every failure.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path, Progress progress = {});  // told after every 16 MiB
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t size);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  uint64_t size() const { return size_; }
  // To the disk and closed; without it the content may be lost in a power cut.
  void finish();

 private:
  void tell(const char* doing) const;

  std::filesystem::path path_;
  Progress progress_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace lockstep::checkpoint
