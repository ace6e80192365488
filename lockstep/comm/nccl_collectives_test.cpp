// The collectives over backend nccl with NCCL itself replaced: even sizes "on the device", odd ones over TCP.
// A program of its own: it gives test_collectives.h its ranks and tensors.
#include "lockstep/comm/test_collectives.h"
#include "lockstep/comm/test_in_flight.h"
#include "lockstep/comm/test_nccl.h"
#include "lockstep/comm/test_unequal_parts.h"

namespace lockstep::comm {

TensorsOfCalls tensors_of_calls() { return {}; }
void run_ranks(int n, const std::function<void(World&)>& body) {
  run_nccl_ranks(n, std::chrono::seconds(20), [&](World& world, FakeDevice&) { body(world); });
}

}  // namespace lockstep::comm
