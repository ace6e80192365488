#include "lockstep/engine/digest.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/hash.h"

namespace lockstep::engine {
namespace {

constexpr size_t kBlock = size_t{1} << 20;  // bytes hashed as one, whatever the number of threads
constexpr int64_t kColumns = 1024;
constexpr int64_t kPiece = int64_t{1} << 22;  // elements on a device at once: 2-byte ones are widened

int64_t as_number(uint64_t bits) { return static_cast<int64_t>(bits); }

// In place of the tensors on the CPU; others are left alone.
void digest_on_host(const std::vector<at::Tensor>& tensors, std::vector<int64_t>& out) {
  std::vector<std::vector<uint64_t>> hashes(tensors.size());  // of the blocks of each
  std::vector<std::pair<size_t, size_t>> blocks;              // tensor and block of it
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].is_cpu()) hashes[i].resize((tensors[i].nbytes() + kBlock - 1) / kBlock);
    for (size_t block = 0; block < hashes[i].size(); ++block) blocks.emplace_back(i, block);
  }
  at::parallel_for(0, std::ssize(blocks), 1, [&](int64_t begin, int64_t end) {
    for (auto next = static_cast<size_t>(begin); next < static_cast<size_t>(end); ++next) {
      const auto [i, block] = blocks[next];
      const auto* data = static_cast<const char*>(tensors[i].const_data_ptr()) + block * kBlock;
      hashes[i][block] = hash64(data, std::min(kBlock, tensors[i].nbytes() - block * kBlock));
    }
  });
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!hashes[i].empty()) out[i] = as_number(hash64(hashes[i].data(), hashes[i].size() * sizeof(uint64_t)));
}

// Odd numbers that look random, [count]: a weight of each place.
at::Tensor weights(int64_t count, uint64_t salt, const at::Tensor& like) {
  const at::Tensor place = at::arange(1, count + 1, like.options().dtype(at::kLong));
  const at::Tensor mixed = at::mul(place, as_number(0x9e3779b97f4a7c15u + 2 * salt));
  return at::add(at::mul(at::bitwise_xor(mixed, at::mul(place, as_number(0xbf58476d1ce4e5b9u))), 2), 1);
}

// Of at most kPiece integers.
at::Tensor digest_piece(const at::Tensor& bits) {
  const at::Tensor words = bits.scalar_type() == at::kInt ? bits : bits.to(at::kInt);
  const int64_t rows = words.numel() / kColumns, rest = words.numel() % kColumns;
  at::Tensor digest = at::zeros({}, words.options().dtype(at::kLong));
  const auto weigh = [&](const at::Tensor& sums, uint64_t salt) {
    digest.add_(at::sum(at::mul(sums.to(at::kLong), weights(sums.numel(), salt, sums))));
  };
  if (rows > 0) {
    const at::Tensor matrix = words.narrow(0, 0, rows * kColumns).view({rows, kColumns});
    weigh(at::sum(matrix, 0, false, at::kInt), 1);  // sums wrap around: every bit counts
    weigh(at::sum(matrix, 1, false, at::kInt), 2);
  }
  if (rest > 0) weigh(words.narrow(0, rows * kColumns, rest), 3);
  return digest;
}

}  // namespace

at::Tensor device_digest(const at::Tensor& tensor) {
  const auto size = tensor.element_size();
  LOCKSTEP_CHECK(size == 2 || size == 4, "digest of elements of ", size, " bytes");
  const at::Tensor bits = tensor.flatten().view(size == 4 ? at::kInt : at::kShort);
  at::Tensor digest = at::zeros({}, bits.options().dtype(at::kLong));
  for (int64_t at = 0; at < bits.numel(); at += kPiece)
    digest = at::add(at::mul(digest, as_number(0x94d049bb133111ebu)),
                     digest_piece(bits.narrow(0, at, std::min(kPiece, bits.numel() - at))));
  return digest;
}

std::vector<int64_t> digests(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> out(tensors.size());
  for (const at::Tensor& tensor : tensors) LOCKSTEP_CHECK(tensor.is_contiguous(), "digest of a tensor with gaps");
  digest_on_host(tensors, out);
  std::vector<at::Tensor> on_device;
  for (const at::Tensor& tensor : tensors)
    if (!tensor.is_cpu()) on_device.push_back(device_digest(tensor));
  if (on_device.empty()) return out;
  const at::Tensor found = at::stack(on_device).cpu();
  const auto* next = found.const_data_ptr<int64_t>();
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!tensors[i].is_cpu()) out[i] = *next++;
  return out;
}

}  // namespace lockstep::engine
