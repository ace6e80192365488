// The collectives over shared memory, ranks as threads.
#include "lockstep/comm/test_collectives.h"
#include "lockstep/comm/test_in_flight.h"
#include "support/run_ranks.h"

namespace lockstep::comm {

void run_ranks(int n, const std::function<void(World&)>& body) {
  testing::run_ranks(n, body);
}

}  // namespace lockstep::comm
