// What a block keeps for its backward. Internal to Block.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/model/block.h"

namespace lockstep::model {

// The x of each branch, the block's own and the sums behind it, is kept as that of its norm.
struct BlockSaved : nn::Saved {
  struct Part {
    at::Tensor x;  // where no norm stands before the branch, and none is shared
    nn::Norm::Saved norm;
    std::unique_ptr<nn::Branch::Saved> branch;
    nn::Norm::Saved norm_behind;
    nn::Dropout::Saved dropout;
  };
  std::vector<Part> parts;
  nn::Microbatch microbatch;  // the key of the masks; the engine's own tensors
};

}  // namespace lockstep::model
