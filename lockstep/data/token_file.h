// Token files: the pair PREFIX.bin + PREFIX.idx of Megatron-LM. The .bin holds the ids of all documents end to end; the
// .idx says where sequences and documents begin.
//
// .idx: "MMIDIDX\0\0", u64 version = 1, u8 dtype, u64 sequences, u64 document entries (documents + 1), then i32 length
// of each sequence, i64 byte offset of each, i64 first sequence of each document, and perhaps i8 mode of each sequence.
// All little-endian; the header has 34 bytes, so nothing behind it is aligned.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

enum class TokenType : uint8_t { kUint8 = 1, kInt8 = 2, kInt16 = 3, kInt32 = 4, kInt64 = 5, kUint16 = 8 };
size_t size_of(TokenType type);
std::string_view name_of(TokenType type);  // "uint16"

std::filesystem::path bin_path(const std::filesystem::path& prefix);  // PREFIX.bin
std::filesystem::path idx_path(const std::filesystem::path& prefix);  // PREFIX.idx

// A whole .idx, checked against itself and against the size of the .bin.
struct TokenIndex {
  TokenType type = TokenType::kUint16;
  std::vector<int32_t> lengths;    // tokens of each sequence
  std::vector<int64_t> documents;  // first sequence of each document, and the number of sequences at the end
  int64_t num_tokens = 0;
};
// DataError LS1220 naming the value that does not fit; LS1221 for a type that holds no ids (float32, float64).
TokenIndex read_token_index(const std::filesystem::path& prefix);

// The tokens of a pair, read as one stream: documents packed end to end. The .bin is mapped, not loaded. Immutable; any
// number of threads may read.
class TokenFile {
 public:
  // Errors of read_token_index, and LS1203 where a file is missing.
  explicit TokenFile(const std::filesystem::path& prefix);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::filesystem::path& prefix() const { return prefix_; }
  const TokenIndex& index() const { return index_; }
  int64_t num_tokens() const { return index_.num_tokens; }
  int64_t num_documents() const { return static_cast<int64_t>(index_.documents.size()) - 1; }

  // Tokens [first, first + out.size()) of the stream, which must exist.
  void read(int64_t first, std::span<int64_t> out) const;

  // DataError LS1222 naming file, position, id and vocabulary unless every id is in [0, vocab_size). One pass over the
  // file, about as fast as memory.
  void require_ids_below(int64_t vocab_size) const;

 private:
  std::filesystem::path prefix_;
  TokenIndex index_;
  const std::byte* bytes_ = nullptr;
};

// Writes a pair, document by document; memory use does not depend on the size of the .bin. Both files appear whole,
// under their names, at finish() and not before.
class TokenFileWriter {
 public:
  // uint16 where vocab_size < 65500, else int32. EnvironmentError LS3101 where the folder cannot be written.
  TokenFileWriter(const std::filesystem::path& prefix, int64_t vocab_size);
  ~TokenFileWriter();  // removes what finish() did not complete
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  // One document of one sequence; ids must be in [0, vocab_size), 1 to 2^31 - 1 of them.
  void add_document(std::span<const int32_t> ids);
  void finish();

  TokenType type() const { return type_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return static_cast<int64_t>(lengths_.size()); }

 private:
  struct Output;
  void append(const void* data, size_t size);
  std::filesystem::path prefix_;
  int64_t vocab_size_;
  TokenType type_;
  std::unique_ptr<Output> bin_;
  std::vector<int32_t> lengths_;
  int64_t num_tokens_ = 0;
};

}  // namespace lockstep::data
