// Bytes between the ranks of a group over TCP: for tensors on the host, where the backend's own network carries those on
// GPUs (nccl). A pair of ranks connects when it first has something to say; the one of the lower group rank calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/job_board.h"
#include "lockstep/comm/rendezvous.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

struct SocketGroup {
  std::string name;        // for messages: "dp[0,1,2]"
  std::string key;         // in the store; the same for the members of this group and for no other group
  std::vector<int> ranks;  // world ranks in group order
  int rank = 0;            // in the group
  std::string address;     // number of this host's interface, as the others reach it: we listen there alone
  std::string token;       // a secret of the job; who connects and does not know it is sent away

  // Filled by the backend: what it knows of a member (by world rank), who is missing where a wait has been in vain (it may
  // take a few seconds), why the job was stopped where it was, and where to note what this rank does, for whom (world
  // rank, -1: nobody) it waits, and how many more of its threads cannot go on until a call here is done.
  std::function<MemberReport(int rank)> report{};
  std::function<Missing(const Waiting& first)> missing{};
  std::function<std::optional<PeerLostError>()> stopped{};
  std::function<void(const Progress&)> note{};
  std::function<void(int waits_for)> note_wait{};
  std::function<void(int change)> note_awaiting{};
};

// Listens when it is made. EnvironmentError LS3043 where the system refuses that.
std::unique_ptr<Transport> make_socket_transport(std::shared_ptr<Store> store, SocketGroup group);

}  // namespace lockstep::comm
