#include "lockstep/comm/board_algorithms.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/comm/chunks.h"

namespace lockstep::comm {
namespace {

constexpr size_t kMostBytes = 256 * 1024;  // of a notice: those of a few ranks stay in the second cache

// The pieces of chunks that one round moves.
class Pieces {
 public:
  // `parts` pieces of equal size make a notice.
  Pieces(const Link& link, size_t parts, size_t largest_chunk)
      : size_(std::max<size_t>(std::min(link.board_capacity(), kMostBytes) / parts / 64 * 64, 64)),
        count_((largest_chunk + size_ - 1) / size_) {}

  size_t size() const { return size_; }
  size_t count() const { return count_; }
  // Empty beyond the chunk's end, and for piece -1.
  Bytes of(Bytes chunk, size_t piece) const {
    if (piece >= count_ || piece * size_ >= chunk.size()) return {};
    return chunk.subspan(piece * size_, std::min(size_, chunk.size() - piece * size_));
  }

 private:
  size_t size_;
  size_t count_;
};

void copy(std::byte* to, std::span<const std::byte> from) {
  if (!from.empty() && to != from.data()) std::memcpy(to, from.data(), from.size());
}

// Adds up what all ranks show at `offset`, this rank's own term taken from where it lies.
void combine_shown(const Link& link, size_t offset, Bytes own, std::byte* out, CombineAll combine) {
  if (own.empty()) return;
  std::vector<const std::byte*> terms(static_cast<size_t>(link.size()));
  for (int peer = 0; peer < link.size(); ++peer)
    terms[static_cast<size_t>(peer)] = peer == link.rank() ? own.data() : link.shown_by(peer) + offset;
  combine(out, terms, own.size());
}

void count_for_all(Link& link, size_t bytes) {
  for (int peer = 0; peer < link.size(); ++peer)
    if (peer != link.rank()) link.count(peer, bytes);
}

// Shows every other rank a piece of its chunk.
void show_others(Link& link, const Chunks& chunks, const Pieces& pieces, size_t piece) {
  for (int peer = 0; peer < link.size(); ++peer) {
    if (peer == link.rank()) continue;
    const Bytes shown = pieces.of(chunks[peer], piece);
    copy(link.board() + static_cast<size_t>(peer) * pieces.size(), shown);
    link.count(peer, shown.size());
  }
}

}  // namespace

void board_exchange(Link& link, const Elements& buffer, CombineAll combine) {
  const Bytes all(buffer.data, static_cast<size_t>(buffer.numel) * buffer.size);
  const Pieces pieces(link, 1, all.size());
  for (size_t i = 0; i < std::max<size_t>(pieces.count(), 1); ++i) {
    const Bytes piece = pieces.of(all, i);
    copy(link.board(), piece);
    count_for_all(link, piece.size());
    link.meet();
    combine_shown(link, 0, piece, piece.data(), combine);
  }
}

void board_all_reduce(Link& link, const Elements& buffer, CombineAll combine) {
  const Chunks chunks(buffer, link.size());
  const Bytes own = chunks[link.rank()];
  const Pieces pieces(link, static_cast<size_t>(link.size()), chunks[0].size());
  const auto place = [&](int chunk) { return static_cast<size_t>(chunk) * pieces.size(); };
  for (size_t i = 0; i <= pieces.count(); ++i) {
    show_others(link, chunks, pieces, i);
    const Bytes sum = pieces.of(own, i - 1);
    copy(link.board() + place(link.rank()), sum);
    count_for_all(link, sum.size());
    link.meet();
    const Bytes next = pieces.of(own, i);
    combine_shown(link, place(link.rank()), next, next.data(), combine);
    for (int peer = 0; peer < link.size(); ++peer) {
      if (peer == link.rank()) continue;
      const Bytes theirs = pieces.of(chunks[peer], i - 1);
      copy(theirs.data(), {link.shown_by(peer) + place(peer), theirs.size()});
    }
  }
}

void board_reduce_scatter(Link& link, const Elements& input, std::byte* output, CombineAll combine) {
  const Chunks chunks(input, link.size());
  const Bytes own = chunks[link.rank()];
  const Pieces pieces(link, static_cast<size_t>(link.size()), chunks[0].size());
  for (size_t i = 0; i < std::max<size_t>(pieces.count(), 1); ++i) {
    show_others(link, chunks, pieces, i);
    link.meet();
    combine_shown(link, static_cast<size_t>(link.rank()) * pieces.size(), pieces.of(own, i),
                  output + i * pieces.size(), combine);
  }
}

void board_all_gather(Link& link, const Elements& buffer) {
  const Chunks chunks(buffer, link.size());
  const Bytes own = chunks[link.rank()];
  const Pieces pieces(link, 1, chunks[0].size());
  for (size_t i = 0; i < std::max<size_t>(pieces.count(), 1); ++i) {
    const Bytes piece = pieces.of(own, i);
    copy(link.board(), piece);
    count_for_all(link, piece.size());
    link.meet();
    for (int peer = 0; peer < link.size(); ++peer) {
      if (peer == link.rank()) continue;
      const Bytes theirs = pieces.of(chunks[peer], i);
      copy(theirs.data(), {link.shown_by(peer), theirs.size()});
    }
  }
}

}  // namespace lockstep::comm
