// Where the ranks of a job find each other before they can send tensors: a small store of keys and values that one
// process serves over TCP (c10d's TCPStore) and every rank reaches.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/tcp_place.h"

namespace lockstep::comm {

// Keys and values that all ranks of one start of one job see; others on the same port do not. Calls may come from
// several threads; a get that waits lets others through. PeerLostError LS3127 where the process that serves it has
// gone.
class Store {
 public:
  virtual ~Store() = default;
  // A value is any bytes; a second set replaces the first.
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual bool has(const std::string& key) = 0;
  // Waits until somebody has set the key. PeerLostError LS3126 naming the key when the deadline passes.
  virtual std::string get(const std::string& key, std::chrono::milliseconds deadline) = 0;
  // A counter, from 0; returns its new value.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
};

struct RendezvousOptions {
  TcpPlace place{};       // of the store
  bool serve = false;     // this process serves it; rank 0, unless the launcher does
  int listening_fd = -1;  // with `serve`: a listening socket to take over instead of binding one
  std::string token{};    // known to the ranks of this job alone: whoever brings another is refused
  std::string attempt{};  // which start of the job: keys of an earlier one are not seen ("0", "1", ...)
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds deadline{300000};  // of the others' coming
};

// Opens the store and waits until all ranks have come. Who serves it must keep it until the others are done. Errors:
//   PeerLostError LS3123     the ranks that never came, or rank 0
//   EnvironmentError LS3124  another token than rank 0's; or none, where the port is open to the network
//   EnvironmentError LS3125  the port cannot be had, or something else listens there
//   ConfigError LS3005       the ranks do not agree on the size of the world, or one number came twice
std::shared_ptr<Store> open_store(const RendezvousOptions& options);

}  // namespace lockstep::comm
