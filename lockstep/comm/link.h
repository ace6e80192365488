// One call's view of the transport: counts the bytes of the tensors that it sends, gives every wait its deadline, and
// holds the two sides of each message against each other.
#pragma once

#include <array>
#include <chrono>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/elements.h"
#include "lockstep/comm/transport.h"
#include "lockstep/program/ledger.h"

namespace lockstep::comm {

// What the ranks of a call must agree on; it precedes the first message of a call from each rank to each other. Its 64
// bytes are not part of the ledger, which counts tensors.
struct CallHeader {
  int64_t sequence = 0;  // of the collective, or of the messages between two ranks
  int64_t numel = 0;
  int32_t root = 0;
  int8_t collective = 0;  // kSend on both sides of a message
  int8_t algorithm = 0;
  int8_t op = 0;
  int8_t dtype = 0;
  program::CallId id{};

  std::string text() const;
  bool operator==(const CallHeader&) const = default;
};
static_assert(sizeof(CallHeader) == 64);

// Peers are group ranks. InternalError where a peer is in another call than this rank, with both.
class Link {
 public:
  Link(Transport& transport, const CallHeader& header, std::chrono::milliseconds patience);

  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }
  int wrap(int index) const { return (index % size() + size()) % size(); }

  // From here on the sizes that two ranks compare are those of what goes between them. Before any message.
  void compare_parts(const PartSizes& parts) { parts_ = parts; }

  void send(int peer, std::span<const std::byte> bytes);
  void recv(int peer, std::span<std::byte> bytes);
  void send_recv(int to, std::span<const std::byte> out, int from, std::span<std::byte> in);
  void send_recv(int to, std::span<const std::byte> out, int from, size_t in_size, const Transport::Consumer& consume);
  void recv(int peer, size_t size, const Transport::Consumer& consume);

  // The board, where the backend has one: a notice carries the header in front. InternalError as above.
  bool has_board() const { return transport_.board() != nullptr; }
  size_t board_capacity() const { return transport_.board()->capacity() - sizeof(CallHeader); }
  std::byte* board() { return transport_.board()->mine() + sizeof(CallHeader); }
  void meet();
  const std::byte* shown_by(int peer) const { return transport_.board()->of(peer) + sizeof(CallHeader); }
  // Bytes of this rank's notice that `peer` takes.
  void count(int peer, size_t bytes) { sent_[static_cast<size_t>(peer)] += static_cast<int64_t>(bytes); }

  // By group rank.
  const std::vector<int64_t>& sent() const { return sent_; }

 private:
  Deadline deadline() const { return std::chrono::steady_clock::now() + patience_; }
  void greet(int peer);           // says what we are in
  void check_greeting(int peer);  // reads what the peer is in
  void compare(int peer, const CallHeader& mine, const CallHeader& theirs) const;
  CallHeader header_of(const std::vector<int64_t>& sizes, int peer) const;

  Transport& transport_;
  CallHeader header_;
  PartSizes parts_;
  std::chrono::milliseconds patience_;
  std::vector<bool> greeted_;
  std::vector<bool> checked_;
  std::vector<int64_t> sent_;
};

}  // namespace lockstep::comm
