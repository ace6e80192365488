// Pieces of sequences on the ranks of cp, and what of each all others need (nn/piece_exchange.h).
#pragma once

#include <memory>
#include <string>

#include "lockstep/nn/piece_exchange.h"
#include "lockstep/parallel/context/group.h"

namespace lockstep::parallel {

// forward: all_gather "columns", all_gather "states" / backward: all_gather of the gradients of "states", and of those of "columns".
// Over all ranks of the group, whatever its kind is. `block`: whose calls they are; `part` begins their names ("ssm" -> "ssm.states").
// The group outlives it.
std::unique_ptr<nn::PieceExchange> make_piece_exchange(ContextGroup& group, const program::CallId& block, const std::string& part);

}  // namespace lockstep::parallel
