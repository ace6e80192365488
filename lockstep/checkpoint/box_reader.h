// Rectangular pieces of a stored tensor, read by ranges of the file.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/checkpoint/box.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {

// Fills `to` with `box` of the tensor `entry`, which has 3 dims at most: of a stack of matrices [n, rows, columns] the box is one of
// the matrix of all their rows. `transposed`: with the box's transpose. Any dtype, device and strides of `to`; values are
// converted. Only the ranges of the box are read, or whole rows where what lies between the ranges is less than a page of memory;
// 4 MiB are held besides, and nothing where the file's bytes can go to `to` as they are. DataError LS1204 where the file ends early.
void read_box(const SafetensorsFile& file, const SafetensorsEntry& entry, const Box& box, bool transposed,
              const at::Tensor& to);

}  // namespace lockstep::checkpoint
