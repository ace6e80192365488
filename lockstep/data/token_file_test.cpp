#include "lockstep/data/token_file.h"

#include <gmock/gmock.h>

#include <cstring>

#include "lockstep/base/check.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

// An .idx as its parts, so that a test can damage each.
struct IndexParts {
  std::string magic{"MMIDIDX\0\0", 9};
  uint64_t version = 1;
  uint8_t type = 8;
  std::vector<int32_t> lengths = {3, 2};
  std::vector<int64_t> offsets = {0, 6};
  std::vector<int64_t> documents = {0, 1, 2};
  std::vector<int8_t> modes{};
  uint64_t sequences = 2, entries = 3;

  std::string bytes() const {
    std::string out = magic;
    const auto put = [&out](const void* data, size_t size) { out.append(static_cast<const char*>(data), size); };
    put(&version, 8);
    put(&type, 1);
    put(&sequences, 8);
    put(&entries, 8);
    put(lengths.data(), lengths.size() * 4);
    put(offsets.data(), offsets.size() * 8);
    put(documents.data(), documents.size() * 8);
    put(modes.data(), modes.size());
    return out;
  }
};

template <typename Token>
std::string bytes_of(const std::vector<Token>& tokens) {
  return std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token));
}

fs::path write_pair(const std::string& name, const std::string& idx, const std::string& bin) {
  const fs::path prefix = fresh_folder(name) / "data";
  write_file(idx_path(prefix), idx);
  write_file(bin_path(prefix), bin);
  return prefix;
}

std::vector<int64_t> all_tokens(const TokenFile& file) {
  std::vector<int64_t> tokens(static_cast<size_t>(file.num_tokens()));
  file.read(0, tokens);
  return tokens;
}

TEST(TokenFile, WritesTheBytesOfTheFormat) {
  const fs::path prefix = fresh_folder("bytes") / "new" / "data";
  TokenFileWriter writer(prefix, 1000);
  writer.add_document(std::vector<int32_t>{7, 8, 9});
  writer.add_document(std::vector<int32_t>{999, 0});
  EXPECT_FALSE(fs::exists(bin_path(prefix)));
  writer.finish();
  EXPECT_EQ(read_file(idx_path(prefix)), IndexParts{}.bytes());
  EXPECT_EQ(read_file(bin_path(prefix)), bytes_of<uint16_t>({7, 8, 9, 999, 0}));
  const TokenFile file(prefix);
  EXPECT_EQ(file.num_documents(), 2);
  EXPECT_THAT(all_tokens(file), ElementsAre(7, 8, 9, 999, 0));
  int64_t two[2];
  file.read(2, two);
  EXPECT_THAT(two, ElementsAre(9, 999));
  EXPECT_THROW(file.read(4, two), InternalError);
}

TEST(TokenFile, TypeFollowsTheVocabulary) {
  const fs::path folder = fresh_folder("types");
  EXPECT_EQ(TokenFileWriter(folder / "a", 65499).type(), TokenType::kUint16);
  EXPECT_EQ(TokenFileWriter(folder / "b", 65500).type(), TokenType::kInt32);
  TokenFileWriter writer(folder / "c", 128256);
  writer.add_document(std::vector<int32_t>{128255, 65536});
  writer.finish();
  EXPECT_THAT(all_tokens(TokenFile(folder / "c")), ElementsAre(128255, 65536));
  EXPECT_THROW(writer.add_document(std::vector<int32_t>{128256}), InternalError);
}

TEST(TokenFile, AnUnfinishedWriterLeavesNothing) {
  const fs::path folder = fresh_folder("unfinished");
  { TokenFileWriter(folder / "data", 100).add_document(std::vector<int32_t>{1}); }
  EXPECT_TRUE(fs::is_empty(folder));
}

template <typename Token>
void expect_type(uint8_t code, const std::vector<Token>& tokens) {
  IndexParts parts{.type = code, .offsets = {0, 3 * sizeof(Token)}};
  const TokenFile file(write_pair(cat("type-", int{code}), parts.bytes(), bytes_of(tokens)));
  EXPECT_EQ(all_tokens(file), std::vector<int64_t>(tokens.begin(), tokens.end()));
  EXPECT_EQ(size_of(file.index().type), sizeof(Token));
}

TEST(TokenFile, ReadsEveryTypeThatHoldsIds) {
  expect_type<uint8_t>(1, {0, 1, 2, 254, 255});
  expect_type<int8_t>(2, {0, 1, 2, 126, 127});
  expect_type<int16_t>(3, {0, 1, 2, 32766, 32767});
  expect_type<int32_t>(4, {0, 1, 2, 3, 2147483647});
  expect_type<int64_t>(5, {0, 1, 2, 3, int64_t{1} << 40});
  expect_type<uint16_t>(8, {0, 1, 2, 65534, 65535});
  for (const uint8_t code : {6, 7}) {
    const fs::path prefix = write_pair("float", IndexParts{.type = code}.bytes(), std::string(10, 'x'));
    EXPECT_THAT(refusal([&] { TokenFile{prefix}; }), AllOf(StartsWith("LS1221"), HasSubstr("float")));
  }
}

TEST(TokenFile, ModesOfTextAreAccepted) {
  const std::string bin(10, '\0');
  EXPECT_EQ(TokenFile(write_pair("modes", IndexParts{.modes = {0, 0}}.bytes(), bin)).num_tokens(), 5);
  const fs::path prefix = write_pair("modes", IndexParts{.modes = {0, 1}}.bytes(), bin);
  EXPECT_THAT(refusal([&] { TokenFile{prefix}; }), HasSubstr("mode 1"));
}

TEST(TokenFile, RefusesDamagedIndices) {
  const auto refused = [](const IndexParts& parts) {
    const fs::path prefix = write_pair("damaged", parts.bytes(), std::string(10, '\0'));
    return refusal([&] { TokenFile{prefix}; });
  };
  EXPECT_EQ(refused({}), "nothing thrown");
  EXPECT_THAT(refused({.magic = "MMIDIDX\1\0"}), HasSubstr("does not begin with MMIDIDX"));
  EXPECT_THAT(refused({.version = 2}), HasSubstr("version 2"));
  EXPECT_THAT(refused({.type = 0}), HasSubstr("dtype code 0"));
  EXPECT_THAT(refused({.type = 9}), HasSubstr("dtype code 9"));
  EXPECT_THAT(refused({.sequences = uint64_t{1} << 62}), HasSubstr("sequence lengths take 4 bytes each"));
  EXPECT_THAT(refused({.entries = ~uint64_t{0}}), HasSubstr("document entries take 8 bytes each"));
  EXPECT_THAT(refused({.entries = 0}), HasSubstr("0 document entries"));
  EXPECT_THAT(refused({.lengths = {3, -2}}), HasSubstr("length -2"));
  EXPECT_THAT(refused({.offsets = {0, 8}}), HasSubstr("begins at byte 8"));
  EXPECT_THAT(refused({.documents = {1, 1, 2}}), HasSubstr("not at 0"));
  EXPECT_THAT(refused({.documents = {0, 3, 2}}), HasSubstr("before document 1"));
  EXPECT_THAT(refused({.documents = {0, 1, 1}}), HasSubstr("but there are 2"));
  EXPECT_THAT(refused({.lengths = {3, 3}}), HasSubstr("6 tokens * 2 bytes = 12"));
}

TEST(TokenFile, RefusesAnIndexCutAnywhere) {
  const std::string idx = IndexParts{}.bytes();
  for (size_t size = 0; size < idx.size(); ++size) {
    const fs::path prefix = write_pair("cut", idx.substr(0, size), std::string(10, '\0'));
    EXPECT_THAT(refusal([&] { TokenFile{prefix}; }), StartsWith("LS1220")) << size;
  }
  const fs::path longer = write_pair("cut", idx + "xyz", std::string(10, '\0'));
  EXPECT_THAT(refusal([&] { TokenFile{longer}; }), HasSubstr("3 bytes are left"));
  const fs::path short_bin = write_pair("cut", idx, std::string(9, '\0'));
  EXPECT_THAT(refusal([&] { TokenFile{short_bin}; }), HasSubstr("has 9"));
}

TEST(TokenFile, NamesAMissingFile) {
  const fs::path prefix = write_pair("missing", IndexParts{}.bytes(), std::string(10, '\0'));
  EXPECT_THAT(refusal([&] { TokenFile{prefix.parent_path() / "date"}; }),
              AllOf(StartsWith("LS1203"), HasSubstr("date.bin"), HasSubstr("data.bin")));
}

TEST(TokenFile, FindsIdsOutsideTheVocabulary) {
  const size_t count = 200000;
  std::vector<int32_t> tokens(count, 5);
  IndexParts parts{.type = 4, .lengths = {static_cast<int32_t>(count)}, .offsets = {0}, .documents = {0, 1}};
  parts.sequences = 1;
  parts.entries = 2;
  const auto refused = [&](int64_t vocab) {
    const TokenFile file(write_pair("outside", parts.bytes(), bytes_of(tokens)));
    return refusal([&] { file.require_ids_below(vocab); });
  };
  EXPECT_EQ(refused(6), "nothing thrown");
  EXPECT_THAT(refused(5), AllOf(StartsWith("LS1222"), HasSubstr("token 0 is id 5")));
  tokens[150001] = 50257;
  EXPECT_THAT(refused(50257), AllOf(HasSubstr("data.bin: token 150001 is id 50257"), HasSubstr("vocab_size = 50257")));
  tokens[150001] = -1;
  EXPECT_THAT(refused(50257), HasSubstr("token 150001 is id -1"));
}

}  // namespace
}  // namespace lockstep::data
