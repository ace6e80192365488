// Post-validation (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 4): the update of a step does not wait until
// the gradient norm of all stages is known, which would keep every rank until the last one is done and give the bubble
// back that the schedule avoids.
//
// LOSS and NORM begin where they stand. STEP takes for granted that nothing is clipped and keeps a copy of what it changes.
// VALIDATE, in the next step, waits for the norm. Where it was above the limit, all ranks go back to the copy, make the right
// update, drop what the next step has computed so far and begin that one again: always the bits that waiting would have
// given.
//
// Only forward passes and what they hand over stand ahead of VALIDATE, and it stands as late as that allows. What a rank has
// received ahead of its own was sent ahead of the sender's, so that all ranks can begin again together: what else was sent
// by then (unreceived) is received and dropped first.
#pragma once

#include <string>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::program {

// A pass: VALIDATE on every rank, TOKENS at the beginning where several ranks hold different samples, and REDUCE_TIED
// directly after the last action that adds to its unit where nothing of it is reduced before. Without
// Pipeline::post_validation the program as it is.
Program validate_in_next_step(Program program, const Layout& layout);

// Where VALIDATE stands in the list; -1: nowhere.
int validate_position(const std::vector<Action>& actions);

// The RECV_F behind the rank's VALIDATE whose SEND_F is ahead of the sender's, in order.
std::vector<Action> unreceived(const Program& program, const Layout& layout, int rank);

// [validate] of verify.h.
std::vector<std::string> check_validation(const Program& program, const Layout& layout);

}  // namespace lockstep::program
