// Precompiled for every file that sees LibTorch. Only what nearly all of them need: the tensor class, not its operators.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
