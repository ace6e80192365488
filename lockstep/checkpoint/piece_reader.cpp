#include "lockstep/checkpoint/piece_reader.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/copy_values.h"
#include "lockstep/checkpoint/dtype.h"

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kPartBytes = int64_t{2} << 20;  // summed and copied while they are in the processor's cache

SafetensorsFile open(const std::filesystem::path& path) {
  try {
    return SafetensorsFile(path);
  } catch (const DataError& error) {
    throw CheckpointError({.code = "LS1303", .what = cat(path.string(), ": ", error.message().what)});
  }
}

// `box`, of a tensor whose first element is at `origin` of the global tensor.
at::Tensor view(at::Tensor tensor, const Sizes& origin, const Box& box) {
  for (size_t dim = 0; dim < box.shape.size(); ++dim)
    tensor = tensor.narrow(static_cast<int64_t>(dim), box.offset[dim] - origin[dim], box.shape[dim]);
  return tensor;
}

// The same as a box of at least one dim, so that a scalar is one row.
int64_t num_rows(const Box& box) {
  return box.shape.empty() ? 1 : box.shape[0];
}

Box rows_of(Box box, int64_t first, int64_t count) {
  if (box.shape.empty()) return box;
  box.offset[0] += first;
  box.shape[0] = count;
  return box;
}

int64_t rows_at_once(int64_t rows, int64_t row_bytes) {
  return std::clamp<int64_t>(kPartBytes / row_bytes, 1, rows);
}

}  // namespace

PieceReader::PieceReader(const std::filesystem::path& step_folder, const std::string& file, const Manifest& manifest)
    : file_(open(step_folder / file)) {
  const ManifestFile& expected = manifest.files.at(file);
  if (file_.size() != expected.size || file_.header_hash() != expected.hash)
    throw CheckpointError(
        {.code = "LS1303",
         .what = cat(file_.path().string(), ": its header does not match the checksum in the manifest")});
}

const SafetensorsEntry& PieceReader::entry(const std::string& name, const Piece& piece) const {
  const SafetensorsEntry* entry = file_.find(name);
  if (entry == nullptr || entry->shape != piece.box.shape)
    throw CheckpointError({.code = "LS1303",
                           .what = cat(file_.path().string(), ": no piece of shape ", shape_text(piece.box.shape),
                                       " of tensor '", name, "', which the manifest promises")});
  return *entry;
}

void PieceReader::read(const std::string& name, const Piece& piece,
                       const std::vector<Destination>& destinations) const {
  const at::ScalarType type = scalar_type(entry(name, piece).dtype).value();
  if (destinations.size() == 1 && intersect(piece.box, destinations[0].box) == piece.box) {
    const at::Tensor target = view(destinations[0].tensor, destinations[0].box.offset, piece.box);
    if (target.is_cpu() && target.scalar_type() == type && target.is_contiguous()) {
      read_rows(name, piece, [&](const Box& rows) { return view(target, piece.box.offset, rows); }, {});
      return;
    }
  }
  scan(name, piece, [&](const Box& rows, const at::Tensor& values) {
    for (const Destination& destination : destinations) {
      const auto common = intersect(rows, destination.box);
      if (!common) continue;
      copy_values(view(destination.tensor, destination.box.offset, *common), view(values, rows.offset, *common));
    }
  });
}

void PieceReader::scan(const std::string& name, const Piece& piece,
                       const std::function<void(const Box&, const at::Tensor&)>& take) const {
  const SafetensorsEntry& entry = this->entry(name, piece);
  const int64_t rows = num_rows(piece.box), row_bytes = static_cast<int64_t>(entry.end - entry.begin) / rows;
  // Not at::empty: glibc does not reuse aligned blocks of this size, and a process that reads many pieces would grow.
  const auto bytes = static_cast<size_t>(rows_at_once(rows, row_bytes) * row_bytes);
  const auto memory = std::make_unique_for_overwrite<char[]>(bytes);
  const auto options = at::TensorOptions().dtype(scalar_type(entry.dtype).value());
  read_rows(name, piece, [&](const Box& part) { return at::from_blob(memory.get(), part.shape, options); }, take);
}

void PieceReader::read_rows(const std::string& name, const Piece& piece, const Place& place,
                            const std::function<void(const Box&, const at::Tensor&)>& take) const {
  const SafetensorsEntry& entry = this->entry(name, piece);
  const int64_t rows = num_rows(piece.box), row_bytes = static_cast<int64_t>(entry.end - entry.begin) / rows;
  const int64_t step = rows_at_once(rows, row_bytes);
  Hasher hasher;
  for (int64_t row = 0; row < rows; row += step) {
    const Box part = rows_of(piece.box, row, std::min(step, rows - row));
    const at::Tensor values = place(part);
    file_.read(entry, static_cast<uint64_t>(row * row_bytes), values.mutable_data_ptr(), values.nbytes());
    hasher.update(values.const_data_ptr(), values.nbytes());
    if (take) take(part, values);
  }
  if (hasher.hash() != piece.hash)
    throw CheckpointError({.code = "LS1304",
                           .what = cat(file_.path().string(), ": tensor '", name, "' is damaged: xxh3 ",
                                       hash_text(hasher.hash()), ", ", hash_text(piece.hash), " was written")});
}

}  // namespace lockstep::checkpoint
