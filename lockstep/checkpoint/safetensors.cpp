#include "lockstep/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/dtype.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian, and so is this reader");

constexpr size_t kPart = size_t{1} << 20;  // bytes of the header held at a time

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
  if (size > kMaxSafetensorsHeader) refuse(cat("a header of ", size, " bytes, at most ", kMaxSafetensorsHeader));
  if (size > file.size() - bytes.size()) refuse(cat("a header of ", size, " bytes in a file of ", file.size()));
  return size;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const uint64_t size = read_header_size(file_);
  data_begin_ = sizeof size + size;
  Hasher hasher;
  hasher.update(&size, sizeof size);
  std::string part;
  uint64_t at = sizeof size;
  const auto next = [&]() -> std::string_view {
    part.resize(std::min<uint64_t>(kPart, data_begin_ - at));
    file_.read(at, part.data(), part.size());
    hasher.update(part.data(), part.size());
    at += part.size();
    return part;
  };
  header_ = parse_safetensors_header(next, file_.size() - data_begin_, path.string());
  header_hash_ = hasher.hash();
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
