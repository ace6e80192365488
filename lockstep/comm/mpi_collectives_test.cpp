// The collectives over MPI, ranks as processes: this program starts itself under mpirun, and every rank runs every test.
// A program of its own: mpirun starts it.
#include <cstdio>

#include "lockstep/comm/mpi_world.h"
#include "lockstep/comm/test_collectives.h"
#include "lockstep/comm/test_in_flight.h"
#include "lockstep/comm/test_unequal_parts.h"
#include "support/mpirun.h"
#include "support/run_ranks.h"

namespace lockstep::comm {
namespace {

std::unique_ptr<World> world;  // one for all tests: MPI starts once per process

TEST(Bits, AreThoseOfSharedMemory) {
  for (const int n : {2, 3, 4, 5})
    for (const Algorithm algorithm : kAlgorithms) {
      const std::vector<std::string> over_mpi = sums(run_ranks, n, algorithm, at::kFloat);
      if (world->rank() >= n) continue;
      const auto shared = [](int ranks, const std::function<void(World&)>& body) { testing::run_ranks(ranks, body); };
      const size_t own = static_cast<size_t>(world->rank());
      EXPECT_EQ(over_mpi[own], sums(shared, n, algorithm, at::kFloat)[own])
          << n << " " << program::algorithm_name(algorithm);
    }
}

int run_tests(const launch::Identity& me) {
  at::set_num_threads(1);
  world = join_mpi(me.rank, me.world_size, {});
  const int failed = RUN_ALL_TESTS();
  world.reset();
  return failed;
}

}  // namespace

TensorsOfCalls tensors_of_calls() { return {}; }
// The tests run on 8 ranks; those that ask for fewer are run by the first n.
void run_ranks(int n, const std::function<void(World&)>& body) {
  if (world->rank() >= n) return;
  try {
    body(*world);
  } catch (const std::exception& error) {
    world->abort(error.what());
    throw;
  }
}

}  // namespace lockstep::comm

int main(int count, char** values) {
  const lockstep::launch::Identity me = lockstep::launch::detect_identity(lockstep::testing::environment());
  if (me.world_size > 1) {
    if (me.rank > 0) GTEST_FLAG_SET(brief, true);  // one rank's list of tests is enough
    testing::InitGoogleTest(&count, values);
    return lockstep::comm::run_tests(me);
  }
  std::vector<std::string> words = lockstep::testing::mpirun_command(8, {values + 1, values + count});
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  std::perror("mpirun");
  return 1;
}
