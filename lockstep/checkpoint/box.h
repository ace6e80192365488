// Boxes: rectangular pieces of a global tensor, by offset and shape.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

using Sizes = std::vector<int64_t>;

struct Box {
  Sizes offset;  // one number per dim
  Sizes shape;
  bool operator==(const Box&) const = default;
};

// Product of sizes; 1 for a scalar. DataError LS1302 where it is negative or overflows.
int64_t volume(const Sizes& shape);

// What both have in common; nothing where that is empty.
std::optional<Box> intersect(const Box& a, const Box& b);

// Whether `box` lies in a tensor of `shape` and has at least one element.
bool lies_in(const Box& box, const Sizes& shape);

std::string shape_text(const Sizes& sizes);  // "[2, 3]"

}  // namespace lockstep::checkpoint
