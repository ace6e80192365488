// Texts of all ranks, on every rank.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

// Collective: `mine` of every rank of the group, in rank order. Two calls: sizes, then the bytes.
std::vector<std::string> gather_texts(Communicator& group, const program::CallId& id, const std::string& mine);

// Collective: `mine` of every rank of the group, [size()][mine.size()]; the same number of them on all.
std::vector<std::vector<int64_t>> gather_numbers(Communicator& group, const program::CallId& id,
                                                 const std::vector<int64_t>& mine);

// "rank 3", "ranks 0-2,5": ascending.
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace lockstep::comm
