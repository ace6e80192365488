// What a backend provides: bytes between the ranks of a group. Everything else is built on it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lockstep/comm/board.h"
#include "lockstep/comm/call_label.h"

namespace lockstep::comm {

using Deadline = std::chrono::steady_clock::time_point;

// What a rank is doing, for its peers' error messages: kept in the backend's shared place by the wrapper.
struct Progress {
  int64_t sequence = 0;  // collectives entered on this communicator; calls between two ranks do not count
  CallLabel call{};
  bool inside = false;   // entered and not yet left
  bool on_board = false;  // a collective that is made on the board
};

// One group, seen from one rank. Used by one thread at a time (but for cancel). Messages between two ranks arrive in
// order. A wait that passes its deadline, or whose peer has died or closed the group, throws PeerLostError LS3002 that
// names the rank at fault and what it did last; LS3003 where a rank aborted the job, with its reason.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void send(int peer, std::span<const std::byte> bytes, Deadline deadline) = 0;
  virtual void recv(int peer, std::span<std::byte> bytes, Deadline deadline) = 0;
  // Both at once, so that a ring of ranks cannot deadlock whatever the size.
  virtual void send_recv(int to, std::span<const std::byte> out, int from, std::span<std::byte> in,
                         Deadline deadline) = 0;
  // send_recv that hands over what arrives piece by piece (in order) instead of storing it: lets a sum read straight
  // from the channel. `consume(piece, offset)` in bytes; pieces are multiples of 64 bytes but for the last.
  using Consumer = std::function<void(std::span<const std::byte> piece, size_t offset)>;
  virtual void send_recv(int to, std::span<const std::byte> out, int from, size_t in_size, const Consumer& consume,
                         Deadline deadline) = 0;

  virtual Board* board() { return nullptr; }  // null: the backend has none
  virtual void publish(const Progress& progress) = 0;
  // `change` more threads of this rank cannot go on until a call of this group is done; a failed call leaves them
  // counted. By any thread.
  virtual void add_awaiting(int change) = 0;
  // Ends the wait of this rank, now and later, with LS3003. May be called by any thread.
  virtual void cancel() = 0;
  virtual std::string backend() const = 0;  // "shared_memory"
};

}  // namespace lockstep::comm
