#include "lockstep/train/tfevents.h"

#include <gtest/gtest.h>

#include "lockstep/base/file.h"
#include "support/folders.h"

namespace lockstep::train {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    for (const int shift : {4, 0}) text += "0123456789abcdef"[(static_cast<unsigned char>(byte) >> shift) & 15];
  }
  return text;
}

// The check value that RFC 3720 and every table of CRCs gives.
TEST(TfEvents, Crc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5u);
  EXPECT_EQ(crc32c(""), 0u);
}

// Bytes that TensorBoard was seen to read back as these values.
TEST(TfEvents, GoldenBytes) {
  EXPECT_EQ(hex(version_record(1.0)),
            "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
  EXPECT_EQ(hex(scalar_record(2.0, 300, "train/loss", 2.5f)),
            "2100000000000000017becf609000000000000004010ac022a130a110a0a747261696e2f6c6f737315000020"
            "4019eb1e89");
}

TEST(TfEvents, FileBeginsWithItsVersion) {
  const std::filesystem::path folder = support::fresh_place("tfevents");
  {
    EventFile file(folder, 1.0);
    file.scalar(2.0, 300, "train/loss", 2.5f);
  }
  const auto path = std::filesystem::directory_iterator(folder)->path();
  EXPECT_TRUE(path.filename().string().starts_with("events.out.tfevents.1."));
  EXPECT_EQ(read_file(path), version_record(1.0) + scalar_record(2.0, 300, "train/loss", 2.5f));
}

}  // namespace
}  // namespace lockstep::train
