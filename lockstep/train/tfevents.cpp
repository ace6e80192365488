#include "lockstep/train/tfevents.h"

#include <unistd.h>

#include <array>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/host.h"
#include "lockstep/base/text.h"

namespace lockstep::train {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // of Castagnoli, bits reversed

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

template <typename Value>
std::string raw(Value value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// Protocol buffers: a key is (field number << 3 | wire type); 0 varint, 1 eight bytes, 2 length and bytes, 5 four
// bytes.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}
std::string key(int field, int wire_type) {
  return varint(static_cast<uint64_t>(field << 3 | wire_type));
}
std::string bytes_field(int field, std::string_view bytes) {
  return key(field, 2) + varint(bytes.size()) + std::string(bytes);
}

std::string record(const std::string& event) {
  const std::string length = raw(static_cast<uint64_t>(event.size()));
  return length + raw(masked_crc32c(length)) + event + raw(masked_crc32c(event));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string version_record(double wall_time) {
  return record(key(1, 1) + raw(wall_time) + bytes_field(3, "brain.Event:2"));
}

std::string scalar_record(double wall_time, int64_t step, std::string_view tag, float value) {
  const std::string summary_value = bytes_field(1, tag) + key(2, 5) + raw(value);
  return record(key(1, 1) + raw(wall_time) + key(2, 0) + varint(static_cast<uint64_t>(step)) +
                bytes_field(5, bytes_field(1, summary_value)));
}

EventFile::EventFile(const std::filesystem::path& folder, double wall_time)
    : path_(folder /
            cat("events.out.tfevents.", static_cast<int64_t>(wall_time), ".", host_name(), ".", ::getpid(), ".0")) {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  stream_.open(path_, std::ios::binary | std::ios::app);
  write(version_record(wall_time));
  flush();
}

void EventFile::scalar(double wall_time, int64_t step, std::string_view tag, float value) {
  write(scalar_record(wall_time, step, tag, value));
}

void EventFile::flush() {
  if (!stream_.flush()) throw EnvironmentError({.code = "LS3101", .what = cat("cannot write ", path_.string())});
}

void EventFile::write(const std::string& record) {
  stream_.write(record.data(), static_cast<std::streamsize>(record.size()));
}

}  // namespace lockstep::train
