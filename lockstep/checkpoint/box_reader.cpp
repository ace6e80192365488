#include "lockstep/checkpoint/box_reader.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <memory>

#include "lockstep/base/check.h"
#include "lockstep/checkpoint/copy_values.h"
#include "lockstep/checkpoint/dtype.h"

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kBufferBytes = int64_t{4} << 20;
constexpr int64_t kPage = 4096;  // what the system reads at least

// A stack of matrices is one with the rows of all.
Sizes joined_rows(const Sizes& shape) {
  return shape.size() == 3 ? Sizes{shape[0] * shape[1], shape[2]} : shape;
}

// A stored matrix; a vector is one of one column.
class MatrixReader {
 public:
  MatrixReader(const SafetensorsFile& file, const SafetensorsEntry& entry)
      : file_(file), entry_(entry), type_(scalar_type(entry.dtype).value()) {
    element_ = static_cast<int64_t>(c10::elementSize(type_));
    width_ = entry.shape.size() >= 2 ? entry.shape.back() : 1;
  }

  void read(const Box& box, bool transposed, const at::Tensor& to) const {
    const int64_t height = box.shape[0], width = box.shape[1];
    if (!transposed && can_hold_as_is(to, width)) {
      read_rows(box, static_cast<char*>(to.mutable_data_ptr()), to.stride(0) * element_);
      return;
    }
    // A gap of less than a page between two rows of the box is read with them: one call for many rows.
    const bool through = (width_ - width) * element_ < kPage;
    const Box wide = through ? Box{{box.offset[0], 0}, {height, width_}} : box;
    const int64_t rows = std::clamp<int64_t>(kBufferBytes / (wide.shape[1] * element_), 1, height);
    // Not at::empty: glibc does not reuse aligned blocks of this size, and a process that reads many boxes would grow.
    const auto memory = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(rows * wide.shape[1] * element_));
    const at::Tensor buffer =
        at::from_blob(memory.get(), {rows, wide.shape[1]}, at::TensorOptions().dtype(type_));
    for (int64_t row = 0; row < height; row += rows) {
      const int64_t count = std::min(rows, height - row);
      read_rows({{wide.offset[0] + row, wide.offset[1]}, {count, wide.shape[1]}},
                static_cast<char*>(buffer.mutable_data_ptr()), wide.shape[1] * element_);
      const at::Tensor part = buffer.narrow(0, 0, count).narrow(1, box.offset[1] - wide.offset[1], width);
      copy_values(to.narrow(transposed ? 1 : 0, row, count), transposed ? part.t() : part);
    }
  }

 private:
  // Whether the file's bytes can be read to where they belong, and not in calls too small to be worth it.
  bool can_hold_as_is(const at::Tensor& to, int64_t width) const {
    if (!to.is_cpu() || to.scalar_type() != type_ || (width > 1 && to.stride(1) != 1)) return false;
    return (width == width_ && to.stride(0) == width) || width * element_ >= kPage;
  }

  // Row r of the box to out + r * stride; in one piece where it is one in the file and in memory.
  void read_rows(const Box& box, char* out, int64_t stride) const {
    const int64_t bytes = box.shape[1] * element_;
    const auto begin = static_cast<uint64_t>((box.offset[0] * width_ + box.offset[1]) * element_);
    if (box.shape[1] == width_ && stride == bytes) {
      file_.read(entry_, begin, out, static_cast<size_t>(box.shape[0] * bytes));
      return;
    }
    for (int64_t row = 0; row < box.shape[0]; ++row)
      file_.read(entry_, begin + static_cast<uint64_t>(row * width_ * element_), out + row * stride,
                 static_cast<size_t>(bytes));
  }

  const SafetensorsFile& file_;
  const SafetensorsEntry& entry_;
  at::ScalarType type_;
  int64_t element_ = 0;  // bytes
  int64_t width_ = 0;    // columns of the whole tensor
};

}  // namespace

void read_box(const SafetensorsFile& file, const SafetensorsEntry& entry, const Box& box, bool transposed,
              const at::Tensor& to) {
  if (to.numel() == 0) return;
  LOCKSTEP_CHECK(entry.shape.size() <= 3 && lies_in(box, joined_rows(entry.shape)), entry.name, " ", shape_text(entry.shape),
                 " at ", shape_text(box.offset));
  LOCKSTEP_CHECK_EQ(volume(box.shape), to.numel());
  const MatrixReader reader(file, entry);
  if (box.shape.size() == 2) {
    reader.read(box, transposed, to);
  } else {
    const int64_t count = volume(box.shape);
    reader.read({{box.offset.empty() ? 0 : box.offset[0], 0}, {count, 1}}, false,
                to.dim() == 0 ? to.view({1, 1}) : to.unsqueeze(1));
  }
}

}  // namespace lockstep::checkpoint
