#include "lockstep/comm/link.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {

std::string CallHeader::text() const {
  const auto kind = static_cast<program::Collective>(collective);
  return cat(kind == program::Collective::kSend ? "send and recv" : program::collective_name(kind), " #", sequence,
             " '", program::call_text(id), "' of ", numel, " ",
             element_name(static_cast<ElementType>(dtype)), " (",
             program::algorithm_name(static_cast<program::Algorithm>(algorithm)), ", root ", root,
             static_cast<ReduceOp>(op) == ReduceOp::kMax ? ", max" : "", ")");
}

Link::Link(Transport& transport, const CallHeader& header, std::chrono::milliseconds patience)
    : transport_(transport),
      header_(header),
      patience_(patience),
      greeted_(static_cast<size_t>(transport.size())),
      checked_(static_cast<size_t>(transport.size())),
      sent_(static_cast<size_t>(transport.size())) {}

CallHeader Link::header_of(const std::vector<int64_t>& sizes, int peer) const {
  CallHeader header = header_;
  if (!sizes.empty()) header.numel = sizes[static_cast<size_t>(peer)];
  return header;
}

void Link::compare(int peer, const CallHeader& mine, const CallHeader& theirs) const {
  if (theirs == mine) return;
  throw InternalError(cat("ranks of a group are in different calls:\n  member ", rank(), ": ", mine.text(),
                          "\n  member ", peer, ": ", theirs.text()));
}

void Link::meet() {
  Board& board = *transport_.board();
  std::memcpy(board.mine(), &header_, sizeof header_);
  board.meet(patience_);
  for (int peer = 0; peer < size(); ++peer) {
    CallHeader theirs;
    std::memcpy(&theirs, board.of(peer), sizeof theirs);
    compare(peer, header_, theirs);
  }
}

void Link::greet(int peer) {
  if (greeted_[static_cast<size_t>(peer)]) return;
  greeted_[static_cast<size_t>(peer)] = true;
  const CallHeader header = header_of(parts_.sent, peer);
  transport_.send(peer, std::as_bytes(std::span(&header, 1)), deadline());
}

void Link::check_greeting(int peer) {
  if (checked_[static_cast<size_t>(peer)]) return;
  checked_[static_cast<size_t>(peer)] = true;
  CallHeader theirs;
  transport_.recv(peer, std::as_writable_bytes(std::span(&theirs, 1)), deadline());
  compare(peer, header_of(parts_.received, peer), theirs);
}

void Link::send(int peer, std::span<const std::byte> bytes) {
  greet(peer);
  transport_.send(peer, bytes, deadline());
  count(peer, bytes.size());
}

void Link::recv(int peer, std::span<std::byte> bytes) {
  check_greeting(peer);
  transport_.recv(peer, bytes, deadline());
}

void Link::recv(int peer, size_t size, const Transport::Consumer& consume) {
  check_greeting(peer);
  transport_.send_recv(peer, {}, peer, size, consume, deadline());
}

void Link::send_recv(int to, std::span<const std::byte> out, int from, std::span<std::byte> in) {
  greet(to);
  check_greeting(from);
  transport_.send_recv(to, out, from, in, deadline());
  count(to, out.size());
}

void Link::send_recv(int to, std::span<const std::byte> out, int from, size_t in_size,
                     const Transport::Consumer& consume) {
  greet(to);
  check_greeting(from);
  transport_.send_recv(to, out, from, in_size, consume, deadline());
  count(to, out.size());
}

}  // namespace lockstep::comm
