#include <bit>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/data/token_file.h"

namespace lockstep::data {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr size_t kHeaderBytes = 34;

// The bytes of an .idx, taken from the front.
class Cursor {
 public:
  Cursor(std::string_view bytes, std::string file) : bytes_(bytes), file_(std::move(file)) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError({.code = "LS1220",
                     .what = cat(file_, ": ", what),
                     .way_out = "the file is damaged or was cut short; write it anew with `lockstep data prepare`"});
  }

  template <typename Value>
  Value take() {
    Value value;
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }

  template <typename Value>
  std::vector<Value> take_array(uint64_t count, const char* name) {
    if (count > bytes_.size() / sizeof(Value))
      refuse(cat(count, " ", name, " take ", sizeof(Value), " bytes each, but ", bytes_.size(), " bytes are left"));
    std::vector<Value> values(count);
    if (count > 0) std::memcpy(values.data(), bytes_.data(), count * sizeof(Value));
    bytes_.remove_prefix(count * sizeof(Value));
    return values;
  }

  size_t left() const { return bytes_.size(); }
  const std::string& file() const { return file_; }

 private:
  std::string_view bytes_;
  std::string file_;
};

TokenType token_type(uint8_t code, const Cursor& cursor) {
  if (code == 6 || code == 7)
    throw DataError({.code = "LS1221",
                     .what = cat(cursor.file(), ": dtype code ", int{code}, " is ", code == 6 ? "float64" : "float32",
                                 ", which holds no token ids")});
  if (code < 1 || code > 8) cursor.refuse(cat("dtype code ", int{code}, " is not one of 1-5 and 8"));
  return static_cast<TokenType>(code);
}

// Sequences must lie end to end, so that the stream of tokens is the .bin itself.
void check_offsets(const TokenIndex& index, const std::vector<int64_t>& offsets, const Cursor& cursor) {
  const auto size = static_cast<int64_t>(size_of(index.type));
  int64_t expected = 0;
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (index.lengths[i] < 0) cursor.refuse(cat("sequence ", i, " has length ", index.lengths[i]));
    if (offsets[i] != expected)
      cursor.refuse(cat("sequence ", i, " begins at byte ", offsets[i], " of the .bin, not at ", expected,
                        " where the one before it ends"));
    expected += index.lengths[i] * size;
  }
}

void check_documents(const TokenIndex& index, const Cursor& cursor) {
  const auto& documents = index.documents;
  if (documents.front() != 0) cursor.refuse(cat("document 0 begins at sequence ", documents.front(), ", not at 0"));
  for (size_t i = 1; i < documents.size(); ++i)
    if (documents[i] < documents[i - 1])
      cursor.refuse(cat("document ", i, " begins at sequence ", documents[i], ", before document ", i - 1, " at ",
                        documents[i - 1]));
  if (documents.back() != static_cast<int64_t>(index.lengths.size()))
    cursor.refuse(cat("documents end at sequence ", documents.back(), ", but there are ", index.lengths.size()));
}

}  // namespace

size_t size_of(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
      return 4;
    case TokenType::kInt64:
      return 8;
  }
  return 0;
}

std::string_view name_of(TokenType type) {
  constexpr std::string_view kNames[] = {"", "uint8", "int8", "int16", "int32", "int64", "", "", "uint16"};
  return kNames[static_cast<size_t>(type)];
}

TokenIndex read_token_index(const fs::path& prefix) {
  require_file(bin_path(prefix));
  const std::string content = read_file(idx_path(prefix));
  Cursor cursor(content, idx_path(prefix).string());
  if (content.size() < kHeaderBytes)
    cursor.refuse(cat("has ", content.size(), " bytes, the header alone takes ", kHeaderBytes));
  if (!content.starts_with(kMagic)) cursor.refuse("does not begin with MMIDIDX");
  cursor.take_array<char>(kMagic.size(), "bytes of the magic");
  if (const auto version = cursor.take<uint64_t>(); version != 1)
    cursor.refuse(cat("version ", version, ", only version 1 is known"));

  TokenIndex index;
  index.type = token_type(cursor.take<uint8_t>(), cursor);
  const auto sequences = cursor.take<uint64_t>();
  const auto documents = cursor.take<uint64_t>();
  if (documents == 0) cursor.refuse("has 0 document entries; there is one more than documents");
  index.lengths = cursor.take_array<int32_t>(sequences, "sequence lengths");
  const auto offsets = cursor.take_array<int64_t>(sequences, "sequence offsets");
  index.documents = cursor.take_array<int64_t>(documents, "document entries");
  const auto modes = cursor.take_array<int8_t>(cursor.left() == sequences ? sequences : 0, "modes");
  for (const int8_t mode : modes)
    if (mode != 0) cursor.refuse(cat("a sequence has mode ", int{mode}, "; only text (mode 0) can be trained on"));
  if (cursor.left() > 0) cursor.refuse(cat(cursor.left(), " bytes are left behind the last array"));

  check_offsets(index, offsets, cursor);
  check_documents(index, cursor);
  for (const int32_t length : index.lengths) index.num_tokens += length;
  const auto expected = static_cast<uint64_t>(index.num_tokens) * size_of(index.type);
  const uint64_t actual = fs::file_size(bin_path(prefix));
  if (actual != expected)
    cursor.refuse(cat(index.num_tokens, " tokens * ", size_of(index.type), " bytes = ", expected, ", but ",
                      bin_path(prefix).string(), " has ", actual));
  return index;
}

}  // namespace lockstep::data
