#include "lockstep/arch/cost.h"

#include <algorithm>

namespace lockstep::arch {

int64_t head_chunk_rows(int64_t vocab_size) { return std::max<int64_t>(128, 16 * 1024 * 1024 / (4 * vocab_size)); }

}  // namespace lockstep::arch
