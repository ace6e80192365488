// Memory that all members of a group see, used in rounds: in each, every member puts up a notice and then reads those of
// all. One round is one wait, and a byte that goes to several members is written once: what small collectives, where
// waits are all that counts, are made of. A backend of one host has it.
#pragma once

#include <chrono>
#include <cstddef>

namespace lockstep::comm {

// Used by one thread at a time. All members make the same rounds.
class Board {
 public:
  virtual ~Board() = default;
  virtual size_t capacity() const = 0;  // bytes of a notice, a multiple of 64

  // Where this member writes its next notice, aligned to 64 bytes. May be written as soon as meet() has returned, while
  // the notices of the round before are still read.
  virtual std::byte* mine() = 0;
  // Puts the notice up and waits until all members have put up theirs. What of() gave for the round before is no longer
  // to be read. Throws as a wait of Transport does, and InternalError where a member is known to be in another call.
  virtual void meet(std::chrono::milliseconds patience) = 0;
  virtual const std::byte* of(int member) const = 0;  // of the round that was met last
};

}  // namespace lockstep::comm
