// A piece of local work that all ranks must finish, or none may go on.
#pragma once

#include <functional>
#include <string>

#include "lockstep/comm/communicator.h"

namespace lockstep::checkpoint {

// Collective: each rank does `work`, which must not communicate. Returns "" on every rank if all succeeded, else on
// every rank the same text: which rank failed first in rank order, and its message. Nothing that `work` throws gets
// out, and a rank that dies is reported by the communicator's deadline.
std::string agree(comm::Communicator& world, const program::CallId& id, const std::function<void()>& work);

// `root`'s text, on every rank; at most 2047 bytes of it.
std::string broadcast_text(comm::Communicator& world, const program::CallId& id, int root, const std::string& text);

// Rank 0's number, on every rank.
int64_t broadcast_number(comm::Communicator& world, const program::CallId& id, int64_t number);

}  // namespace lockstep::checkpoint
