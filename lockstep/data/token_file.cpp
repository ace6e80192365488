#include "lockstep/data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/base/check.h"
#include "lockstep/base/file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLargestUint16Vocabulary = 65500;
constexpr int64_t kScanBlock = 1 << 16;

[[noreturn]] void system_error(const char* doing, const fs::path& path) {
  const int code = errno;
  throw EnvironmentError({.code = "LS3101", .what = cat(doing, " ", path.string(), ": ", std::strerror(code))});
}

// Calls visit(pointer to the tokens in their own type).
template <typename Visit>
auto with_type(TokenType type, const std::byte* bytes, Visit visit) {
  switch (type) {
    case TokenType::kUint8:
      return visit(reinterpret_cast<const uint8_t*>(bytes));
    case TokenType::kInt8:
      return visit(reinterpret_cast<const int8_t*>(bytes));
    case TokenType::kInt16:
      return visit(reinterpret_cast<const int16_t*>(bytes));
    case TokenType::kInt32:
      return visit(reinterpret_cast<const int32_t*>(bytes));
    case TokenType::kInt64:
      return visit(reinterpret_cast<const int64_t*>(bytes));
    case TokenType::kUint16:
      return visit(reinterpret_cast<const uint16_t*>(bytes));
  }
  throw InternalError(cat("token type ", static_cast<int>(type)));
}

// The first position whose id is not in [0, limit), or `count`. Blocks are judged whole by their smallest and largest
// id: that loop has no branch, so it becomes vector code.
template <typename Token>
int64_t first_outside(const Token* tokens, int64_t count, int64_t limit) {
  for (int64_t begin = 0; begin < count; begin += kScanBlock) {
    const int64_t end = std::min(count, begin + kScanBlock);
    const auto outside = [limit](int64_t id) { return id < 0 || id >= limit; };
    Token low = tokens[begin], high = tokens[begin];
    for (int64_t i = begin; i < end; ++i) {
      low = std::min(low, tokens[i]);
      high = std::max(high, tokens[i]);
    }
    if (!outside(static_cast<int64_t>(low)) && !outside(static_cast<int64_t>(high))) continue;
    for (int64_t i = begin; i < end; ++i)
      if (outside(static_cast<int64_t>(tokens[i]))) return i;
  }
  return count;
}

}  // namespace

fs::path bin_path(const fs::path& prefix) {
  return prefix.string() + ".bin";
}
fs::path idx_path(const fs::path& prefix) {
  return prefix.string() + ".idx";
}

TokenFile::TokenFile(const fs::path& prefix) : prefix_(prefix), index_(read_token_index(prefix)) {
  const auto size = static_cast<size_t>(index_.num_tokens) * size_of(index_.type);
  if (size == 0) return;
  const fs::path path = bin_path(prefix);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) system_error("cannot open", path);
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  ::close(file);
  if (mapped == MAP_FAILED) system_error("cannot map", path);
  bytes_ = static_cast<const std::byte*>(mapped);
}

TokenFile::~TokenFile() {
  if (bytes_ != nullptr)
    ::munmap(const_cast<std::byte*>(bytes_), static_cast<size_t>(index_.num_tokens) * size_of(index_.type));
}

void TokenFile::read(int64_t first, std::span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  LOCKSTEP_CHECK(first >= 0 && count <= num_tokens() && first <= num_tokens() - count, "tokens [", first, ", ",
                 first + count, ") of ", num_tokens());
  with_type(index_.type, bytes_, [&](const auto* tokens) { std::copy_n(tokens + first, count, out.begin()); });
}

void TokenFile::require_ids_below(int64_t vocab_size) const {
  if (num_tokens() == 0) return;
  const int64_t position = with_type(
      index_.type, bytes_, [&](const auto* tokens) { return first_outside(tokens, num_tokens(), vocab_size); });
  if (position == num_tokens()) return;
  int64_t id = 0;
  read(position, std::span(&id, 1));
  throw DataError({.code = "LS1222",
                   .what = cat(bin_path(prefix_).string(), ": token ", position, " is id ", id,
                               ", but the model's vocabulary has ids 0 to ", vocab_size - 1,
                               " (model.vocab_size = ", vocab_size, ")"),
                   .way_out = "prepare the data with the tokenizer of this model, or raise model.vocab_size"});
}

// A file under a temporary name, renamed when it is whole.
struct TokenFileWriter::Output {
  fs::path path, temporary;
  int file = -1;
  bool done = false;
  std::vector<char> buffer{};

  explicit Output(const fs::path& final_path)
      : path(final_path), temporary(final_path.string() + ".tmp-" + std::to_string(::getpid())) {
    file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) system_error("cannot create", temporary);
  }
  ~Output() {
    if (file >= 0) ::close(file);
    if (!done) ::unlink(temporary.c_str());
  }

  void append(const void* data, size_t size) {
    const auto* bytes = static_cast<const char*>(data);
    buffer.insert(buffer.end(), bytes, bytes + size);
    if (buffer.size() > (1 << 20)) flush();
  }
  void flush() {
    for (size_t at = 0; at < buffer.size();) {
      const ssize_t written = ::write(file, buffer.data() + at, buffer.size() - at);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) system_error("cannot write", temporary);
      at += static_cast<size_t>(written);
    }
    buffer.clear();
  }
  void finish() {
    flush();
    if (::fsync(file) != 0) system_error("cannot sync", temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0) system_error("cannot rename to", path);
    done = true;
  }
};

TokenFileWriter::TokenFileWriter(const fs::path& prefix, int64_t vocab_size)
    : prefix_(prefix),
      vocab_size_(vocab_size),
      type_(vocab_size < kLargestUint16Vocabulary ? TokenType::kUint16 : TokenType::kInt32) {
  std::error_code ignored;
  if (prefix.has_parent_path()) fs::create_directories(prefix.parent_path(), ignored);  // a failure shows at once below
  bin_ = std::make_unique<Output>(bin_path(prefix));
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::add_document(std::span<const int32_t> ids) {
  LOCKSTEP_CHECK(!ids.empty() && ids.size() <= INT32_MAX, "a document of ", ids.size(), " tokens");
  const auto outside = std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id < 0 || id >= vocab_size_; });
  LOCKSTEP_CHECK(outside == ids.end(), "token id ", *outside, " in a vocabulary of ", vocab_size_);
  if (type_ == TokenType::kUint16) {
    const std::vector<uint16_t> narrow(ids.begin(), ids.end());
    bin_->append(narrow.data(), narrow.size() * sizeof(uint16_t));
  } else {
    bin_->append(ids.data(), ids.size_bytes());
  }
  lengths_.push_back(static_cast<int32_t>(ids.size()));
  num_tokens_ += static_cast<int64_t>(ids.size());
}

void TokenFileWriter::finish() {
  const auto count = static_cast<uint64_t>(lengths_.size());
  Output idx(idx_path(prefix_));
  const auto put = [&idx](const auto& value) { idx.append(&value, sizeof value); };
  idx.append("MMIDIDX\0\0", 9);
  put(uint64_t{1});
  put(static_cast<uint8_t>(type_));
  put(count);
  put(count + 1);
  idx.append(lengths_.data(), lengths_.size() * sizeof(int32_t));
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    put(offset);
    offset += length * static_cast<int64_t>(size_of(type_));
  }
  for (uint64_t document = 0; document <= count; ++document) put(static_cast<int64_t>(document));
  bin_->finish();
  idx.finish();  // the index last: it never describes a .bin that is not there
  sync_directory(prefix_.has_parent_path() ? prefix_.parent_path() : fs::path("."));
}

}  // namespace lockstep::data
