// TensorBoard event files: scalars, written without protobuf. A record is u64 length, the masked CRC-32C of those 8
// bytes, an Event message, and its masked CRC-32C.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace lockstep::train {

uint32_t crc32c(std::string_view bytes);         // Castagnoli
uint32_t masked_crc32c(std::string_view bytes);  // as TFRecord stores it

// The records' bytes.
std::string version_record(double wall_time);
std::string scalar_record(double wall_time, int64_t step, std::string_view tag, float value);

// One new file events.out.tfevents.<seconds>.<host>.<pid>.0 in `folder`. EnvironmentError LS3101 where it cannot be
// written.
class EventFile {
 public:
  EventFile(const std::filesystem::path& folder, double wall_time);
  void scalar(double wall_time, int64_t step, std::string_view tag, float value);
  void flush();

 private:
  void write(const std::string& record);
  std::filesystem::path path_;
  std::ofstream stream_;
};

}  // namespace lockstep::train
