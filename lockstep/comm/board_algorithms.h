// The collectives on a board: the exchange and direct algorithms of program/ledger.h, in rounds. What a rank takes of a
// notice of another counts as sent to it. A large tensor goes through in pieces.
#pragma once

#include "lockstep/comm/algorithms.h"

namespace lockstep::comm {

// One round a piece: everyone shows it, everyone adds all.
void board_exchange(Link& link, const Elements& buffer, CombineAll combine);
// Round i shows piece i of the other ranks' chunks, and of the own chunk the sum of piece i - 1.
void board_all_reduce(Link& link, const Elements& buffer, CombineAll combine);
void board_reduce_scatter(Link& link, const Elements& input, std::byte* output, CombineAll combine);
void board_all_gather(Link& link, const Elements& buffer);

}  // namespace lockstep::comm
