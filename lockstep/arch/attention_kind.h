// Attention of heads with keys and values of their own, as a kind of branch.
#pragma once

#include "lockstep/arch/branch_kind.h"

namespace lockstep::arch {

const BranchKind& attention_kind();

}  // namespace lockstep::arch
