// Where the ranks of a job find each other before they can send tensors: a small store of keys and values that one
// process serves over TCP (c10d's TCPStore) and every rank reaches.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace lockstep::comm {

// Keys and values that all ranks of one start of one job see; others on the same port do not. Calls may come from several
// threads; a get that waits lets others through. PeerLostError LS3127 where the process that serves it has gone.
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
  std::string address;     // of the store: a host name or number
  int port = 0;            // 0 with `serve`: any free one
  bool serve = false;      // this process serves it; rank 0, unless the launcher does
  int listening_fd = -1;   // with `serve`: a listening socket to take over instead of binding one
  std::string token;       // known to the ranks of this job alone: whoever brings another is refused
  std::string attempt;     // which start of the job: keys of an earlier one are not seen ("0", "1", ...)
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds deadline{300000};  // of the others' coming
};

// Opens the store and waits until all ranks have come. With `serve` it listens on `address` alone, never on all interfaces.
// A world of one needs no store. EnvironmentError LS3125 where the port cannot be had or is another job's (the token
// differs); PeerLostError LS3123 that names the ranks that never came, or rank 0.
std::shared_ptr<Store> open_store(const RendezvousOptions& options);

}  // namespace lockstep::comm
