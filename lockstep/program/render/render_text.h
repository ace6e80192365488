// Tables and bytes as text: what the pages of `lockstep show` share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/arch/model_config.h"

namespace lockstep::program {

using Row = std::vector<std::string>;

// Columns as wide as their longest entry; `numbers` of them from `first_number` on are right-aligned.
std::string table(const std::vector<Row>& rows, size_t first_number, size_t numbers);

// "498 MiB".
std::string bytes_text(int64_t bytes);
// Bytes as the literature counts them, in powers of ten: "498 MB".
std::string decimal_bytes(double bytes);
std::string decimal_bytes(int64_t bytes);
// "0..3", "0, 2, 4".
std::string rank_list(const std::vector<int>& ranks);
// Neighbours in ascending order as one: of {0, 1, 4} text(0, 1) and text(4, 4).
std::vector<std::string> stretches(const std::vector<int>& numbers, const std::function<std::string(int first, int last)>& text);
// "0..1, 4..5"; of many stretches the first ones and the last: "..., ... 30..31".
std::string ranges_text(const std::vector<int>& numbers);


// Layers of blocks that stand for all on the pages of a block: the first of each list of branches.
std::vector<int> blocks_shown(const arch::ModelConfig& model);
// What sets it apart from the others of the model: "without experts"; of mixers "state space, with experts", "attention, window 24".
std::string block_word(const arch::ModelConfig& model, int layer);

}  // namespace lockstep::program
