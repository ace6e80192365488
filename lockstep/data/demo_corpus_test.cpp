#include "lockstep/data/demo_corpus.h"

#include <gmock/gmock.h>
#include <zlib.h>

#include "lockstep/base/text.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string big_endian(int32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

// A character vector as R serializes it.
std::string serialized(const std::vector<std::string>& lines) {
  std::string bytes = "X\n" + big_endian(3) + big_endian(262657) + big_endian(197888) + big_endian(5) + "UTF-8" +
                      big_endian(16) + big_endian(static_cast<int32_t>(lines.size()));
  for (const std::string& line : lines)
    bytes += big_endian(0x40009) + big_endian(static_cast<int32_t>(line.size())) + line;
  return bytes;
}

std::string record(const std::string& plain) {
  uLongf size = ::compressBound(plain.size());
  std::string packed(size, '\0');
  ::compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(plain.data()),
             plain.size());
  return big_endian(static_cast<int32_t>(plain.size())) + packed.substr(0, size);
}

std::string six_records() {
  std::string bytes;
  for (int i = 0; i < 6; ++i) bytes += record(serialized({cat("novel ", i), "", "the end"}));
  return bytes;
}

TEST(DemoCorpus, DecodesTheNovels) {
  const std::vector<DemoText> novels = decode_austen(six_records());
  ASSERT_EQ(novels.size(), 6u);
  EXPECT_EQ(novels[3].name, "persuasion");
  EXPECT_EQ(novels[3].text, "novel 3\n\nthe end\n");
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(novels[i].held_out, i == 3);
}

TEST(DemoCorpus, RefusesDamagedNovels) {
  const std::string whole = six_records();
  for (size_t size = 0; size < whole.size(); size += 3)
    EXPECT_THAT(refusal([&] { decode_austen(whole.substr(0, size)); }), StartsWith("LS1245"));
  EXPECT_THAT(refusal([&] { decode_austen(whole + "x"); }), HasSubstr("1 bytes behind the sixth record"));
  std::string missing = serialized({"a"});
  missing.replace(missing.size() - 5, 4, big_endian(-1));
  EXPECT_THAT(refusal([&] { decode_austen(record(missing)); }), HasSubstr("line 0 is missing"));
  EXPECT_THAT(refusal([&] { decode_austen(record("Y\n....")); }), HasSubstr("XDR"));
  EXPECT_THAT(refusal([&] { decode_austen(big_endian(-1) + "xx"); }), HasSubstr("claims 4294967295 bytes"));
}

TEST(DemoCorpus, HoldsOutRevelation) {
  const std::vector<DemoText> parts = split_bible("Jude 1\n\n  1 Jude\n\nRevelation 1\n\n  1 The Revelation\n");
  EXPECT_EQ(parts[0].text, "Jude 1\n\n  1 Jude\n\n");
  EXPECT_EQ(parts[1].text, "Revelation 1\n\n  1 The Revelation\n");
  EXPECT_FALSE(parts[0].held_out);
  EXPECT_TRUE(parts[1].held_out);
  EXPECT_THAT(refusal([] { split_bible("Genesis 1"); }), HasSubstr("no heading"));
}

TEST(DemoCorpus, ChecksTheTotals) {
  const auto folder = fresh_folder("demo");
  write_file(folder / "Rdata.rdb", six_records());
  write_file(folder / "bible.txt", "\nRevelation 1\n");
  EXPECT_THAT(refusal([&] { write_demo_corpus(folder, folder / "out"); }), HasSubstr("expected 4025029"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace
}  // namespace lockstep::data
