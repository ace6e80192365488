#include "lockstep/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>

#include <array>
#include <bit>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/dtype.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian, and so is this reader");

constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxName = 1024;
constexpr const char* kMetadata = "__metadata__";

class Parser {
 public:
  explicit Parser(std::string_view origin) : origin_(origin) {}

  SafetensorsHeader parse(std::string_view text, uint64_t data_size) const {
    if (text.empty() || text.front() != '{') refuse("the header does not begin with '{'");
    // The JSON parser takes a zero byte for the end of the text.
    if (text.find('\0') != std::string_view::npos) refuse("the header holds a zero byte");
    const Json json = parse_json(text, origin_);
    SafetensorsHeader header;
    for (const auto& [name, value] : json.items()) {
      if (name == kMetadata) {
        header.metadata = metadata(value);
      } else {
        header.entries.emplace(name, entry(name, value));
      }
    }
    if (header.entries.size() > kMaxTensors) refuse(cat(header.entries.size(), " tensors, at most ", kMaxTensors));
    check_cover(header, data_size);
    return header;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError({.code = "LS1290", .what = cat("not a valid safetensors file: ", what), .where = origin_});
  }
  [[noreturn]] void refuse(const std::string& tensor, const std::string& what) const {
    refuse(cat("tensor '", tensor, "': ", what));
  }

  std::map<std::string, std::string> metadata(const Json& json) const {
    if (!json.is_object()) refuse("__metadata__ is not an object");
    std::map<std::string, std::string> pairs;
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) refuse(cat("__metadata__ '", key, "' is not a string"));
      pairs.emplace(key, value.get<std::string>());
    }
    return pairs;
  }

  SafetensorsEntry entry(const std::string& name, const Json& json) const {
    if (name.size() > kMaxName) refuse(cat("a name of ", name.size(), " bytes, at most ", kMaxName));
    if (!json.is_object()) refuse(name, "is not an object");
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!json.contains(key)) refuse(name, cat("has no '", key, "'"));
    }
    SafetensorsEntry entry{.name = name, .dtype = {}, .shape = shape(name, json["shape"])};
    if (!json["dtype"].is_string()) refuse(name, "dtype is not a string");
    entry.dtype = json["dtype"].get<std::string>();
    const Json& offsets = json["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned())
      refuse(name, "data_offsets are not two non-negative integers");
    entry.begin = offsets[0].get<uint64_t>();
    entry.end = offsets[1].get<uint64_t>();
    const uint64_t bytes = byte_size(entry);
    if (entry.end < entry.begin || entry.end - entry.begin != bytes)
      refuse(name,
             cat("data_offsets [", entry.begin, ", ", entry.end, "], but dtype and shape need ", bytes, " bytes"));
    return entry;
  }

  std::vector<int64_t> shape(const std::string& name, const Json& json) const {
    if (!json.is_array()) refuse(name, "shape is not a list");
    if (json.size() > kMaxDims) refuse(name, cat(json.size(), " dimensions, at most ", kMaxDims));
    std::vector<int64_t> sizes;
    for (const Json& size : json) {
      if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX)
        refuse(name, cat("shape holds ", size.dump(), ", not a size"));
      sizes.push_back(size.get<int64_t>());
    }
    return sizes;
  }

  uint64_t byte_size(const SafetensorsEntry& entry) const {
    const auto dtype = find_dtype(entry.dtype);
    if (!dtype) refuse(entry.name, cat("unknown dtype '", entry.dtype, "'"));
    uint64_t bits = static_cast<uint64_t>(dtype->bits);
    for (const int64_t size : entry.shape) {
      if (__builtin_mul_overflow(bits, static_cast<uint64_t>(size), &bits))
        refuse(entry.name, "its size overflows 64 bits");
    }
    if (bits % 8 != 0) refuse(entry.name, "its size is not a whole number of bytes");
    return bits / 8;
  }

  // Sorted by offset, each tensor begins where the one before ended, and the last ends with the file.
  void check_cover(const SafetensorsHeader& header, uint64_t data_size) const {
    std::vector<const SafetensorsEntry*> order;
    for (const auto& [name, entry] : header.entries) order.push_back(&entry);
    std::sort(order.begin(), order.end(),
              [](const auto* a, const auto* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
    uint64_t at = 0;
    for (const auto* entry : order) {
      if (entry->begin != at)
        refuse(entry->name,
               cat("begins at byte ", entry->begin, entry->begin < at ? ", inside" : ", after a hole behind",
                   " the tensor before it, which ends at ", at));
      at = entry->end;
    }
    if (at != data_size) refuse(cat("the tensors end at byte ", at, " of the data, the file at ", data_size));
  }

  std::string origin_;
};

uint64_t read_header_size(const InputFile& file) {
  std::array<unsigned char, 8> bytes{};
  const auto refuse = [&](const std::string& what) {
    throw DataError(
        {.code = "LS1290", .what = cat("not a valid safetensors file: ", what), .where = file.path().string()});
  };
  if (file.size() < bytes.size()) refuse(cat("only ", file.size(), " bytes"));
  file.read(0, bytes.data(), bytes.size());
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size > kMaxHeader) refuse(cat("a header of ", size, " bytes, at most ", kMaxHeader));
  if (size > file.size() - bytes.size()) refuse(cat("a header of ", size, " bytes in a file of ", file.size()));
  return size;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_size, std::string_view origin) {
  return Parser(origin).parse(json, data_size);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  std::string front(sizeof(uint64_t) + read_header_size(file_), '\0');
  file_.read(0, front.data(), front.size());
  data_begin_ = front.size();
  header_hash_ = hash64(front);
  const std::string_view json = std::string_view(front).substr(sizeof(uint64_t));
  header_ = parse_safetensors_header(json, file_.size() - data_begin_, path.string());
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = header_.entries.find(name);
  return found == header_.entries.end() ? nullptr : &found->second;
}

void SafetensorsFile::read(const SafetensorsEntry& entry, uint64_t begin, void* out, size_t size) const {
  file_.read(data_begin_ + entry.begin + begin, out, size);
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr)
    throw DataError({.code = "LS1291", .what = cat(path().string(), " holds no tensor '", name, "'")});
  const auto type = scalar_type(entry->dtype);
  if (!type)
    throw DataError(
        {.code = "LS1291",
         .what = cat(path().string(), ": LibTorch has no dtype ", entry->dtype, " of tensor '", name, "'")});
  at::Tensor tensor = at::empty(entry->shape, at::TensorOptions().dtype(*type));
  read(*entry, 0, tensor.mutable_data_ptr(), tensor.nbytes());
  return tensor;
}

}  // namespace lockstep::checkpoint
