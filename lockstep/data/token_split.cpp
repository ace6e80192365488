#include "lockstep/data/token_split.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::data {
namespace {

// The kernels' block of keys: shorter pieces leave blocks part empty.
constexpr int64_t kUsefulPiece = 48;

struct Piece {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
using Pieces = std::vector<std::vector<Piece>>;  // by rank

// Pairs of a query and a key, of any piece: sums over the places before each.
class Work {
 public:
  Work(int64_t length, int64_t padded, std::span<const int32_t> documents) : before_(static_cast<size_t>(padded) + 1) {
    size_t document = 0;
    for (int64_t place = 0; place < padded; ++place) {
      while (document + 1 < documents.size() && documents[document + 1] <= place) ++document;
      const int64_t seen = place < length ? place - documents[document] + 1 : 1;
      before_[static_cast<size_t>(place) + 1] = before_[static_cast<size_t>(place)] + seen;
    }
  }
  int64_t of(const Piece& piece) const { return before_[static_cast<size_t>(piece.end)] - before_[static_cast<size_t>(piece.begin)]; }
  int64_t of(const std::vector<Piece>& pieces) const {
    int64_t sum = 0;
    for (const Piece& piece : pieces) sum += of(piece);
    return sum;
  }
  int64_t most(const Pieces& pieces) const {
    int64_t found = 0;
    for (const std::vector<Piece>& of_rank : pieces) found = std::max(found, of(of_rank));
    return found;
  }
  int64_t all() const { return before_.back(); }

 private:
  std::vector<int64_t> before_;
};

// 2 n pieces of `part` tokens from `begin` on; rank r gets pieces r and 2n - 1 - r.
void add_zigzag(int64_t begin, int64_t part, Pieces& to) {
  const auto ranks = static_cast<int64_t>(to.size());
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (const int64_t i : {rank, 2 * ranks - 1 - rank}) to[static_cast<size_t>(rank)].push_back({begin + i * part, begin + (i + 1) * part});
}

// A split of several documents. `here`: tokens of every rank.
class DocumentSplit {
 public:
  DocumentSplit(const Work& work, int ranks, int64_t here)
      : work_(work),
        here_(here),
        useful_(std::clamp<int64_t>(here / 16, 1, kUsefulPiece)),
        heavy_(std::max<int64_t>(1, work.all() / ranks / 32)),
        pieces_(static_cast<size_t>(ranks)) {}

  // Every rank gets the same tokens and the same work of a document that is long enough: its first tokens, which do not divide and have
  // next to no work, are left over.
  void add_document(const Piece& document) {
    const int64_t parts = 2 * static_cast<int64_t>(pieces_.size());
    if (document.size() < parts * useful_) return leave(document);
    const int64_t part = document.size() / parts, first = document.end - parts * part;
    if (first > document.begin) leave({document.begin, first});
    add_zigzag(first, part, pieces_);
  }
  void add_fill(const Piece& fill) {
    for (int64_t begin = fill.begin; begin < fill.end; begin += useful_) leave({begin, std::min(begin + useful_, fill.end)});
  }
  Pieces take() && {
    deal();
    return std::move(pieces_);
  }

 private:
  // Small neighbours as one piece; what is too much for one rank in several.
  void leave(const Piece& piece) {
    const int64_t work = work_.of(piece), size = piece.size();
    if (work <= heavy_ && !left_.empty() && left_.back().end == piece.begin && piece.end - left_.back().begin <= useful_) {
      left_.back().end = piece.end;
      return;
    }
    const int64_t parts = work <= heavy_ ? 1 : std::min((size + useful_ - 1) / useful_, (work + heavy_ - 1) / heavy_);
    for (int64_t i = 0; i < parts; ++i) left_.push_back({piece.begin + size * i / parts, piece.begin + size * (i + 1) / parts});
  }

  double density(const Piece& piece) const { return static_cast<double>(work_.of(piece)) / static_cast<double>(piece.size()); }

  struct Load {
    int64_t work = 0, tokens = 0;
    auto operator<=>(const Load&) const = default;
  };
  // The rank of the least work that has room; of several the first of the fewest tokens.
  size_t least_busy(const std::vector<Load>& loads) const {
    size_t found = loads.size();
    for (size_t rank = 0; rank < loads.size(); ++rank)
      if (loads[rank].tokens < here_ && (found == loads.size() || loads[rank] < loads[found])) found = rank;
    LOCKSTEP_CHECK(found < loads.size(), "more tokens than ", loads.size(), " ranks have room for: ", here_, " each");
    return found;
  }

  void deal() {
    std::vector<Load> loads;
    for (const std::vector<Piece>& of_rank : pieces_) {
      Load& load = loads.emplace_back(Load{.work = work_.of(of_rank)});
      for (const Piece& piece : of_rank) load.tokens += piece.size();
    }
    std::ranges::stable_sort(left_, [this](const Piece& a, const Piece& b) { return density(a) > density(b); });
    for (Piece piece : left_)
      while (piece.size() > 0) {  // what a rank has no room for goes to the next
        const size_t rank = least_busy(loads);
        const Piece taken{piece.begin, piece.begin + std::min(piece.size(), here_ - loads[rank].tokens)};
        pieces_[rank].push_back(taken);
        loads[rank].tokens += taken.size();
        loads[rank].work += work_.of(taken);
        piece.begin = taken.end;
      }
  }

  const Work& work_;
  const int64_t here_, useful_, heavy_;
  Pieces pieces_;
  std::vector<Piece> left_{};
};

Pieces zigzag(int64_t length, const TokenSplit& split, std::span<const int32_t> documents) {
  const int ranks = split.ranks;
  const int64_t part = (length + 2 * ranks - 1) / (2 * ranks), here = 2 * part;
  Pieces plain(static_cast<size_t>(ranks));
  add_zigzag(0, part, plain);
  if (documents.size() == 1 || split.whole_pieces) return plain;
  const Work work(length, ranks * here, documents);
  const int64_t most = work.most(plain);
  if (50 * ranks * most <= 51 * work.all()) return plain;
  DocumentSplit inside(work, ranks, here);
  for (size_t i = 0; i < documents.size(); ++i)
    inside.add_document({documents[i], i + 1 < documents.size() ? documents[i + 1] : length});
  inside.add_fill({length, ranks * here});
  Pieces by_document = std::move(inside).take();
  return work.most(by_document) < most ? by_document : plain;
}

std::vector<int32_t> places_of(std::vector<Piece> pieces) {
  std::ranges::sort(pieces, {}, &Piece::begin);
  std::vector<int32_t> places;
  for (const Piece& piece : pieces)
    for (int64_t place = piece.begin; place < piece.end; ++place) places.push_back(static_cast<int32_t>(place));
  return places;
}

void check_documents(int64_t length, std::span<const int32_t> documents) {
  LOCKSTEP_CHECK(!documents.empty() && documents.front() == 0, "documents of a sequence begin at its first token");
  for (size_t i = 1; i < documents.size(); ++i)
    LOCKSTEP_CHECK(documents[i - 1] < documents[i] && documents[i] < length, "document ", i, " begins at ", documents[i], " behind ",
                   documents[i - 1], " of ", length, " tokens");
}

}  // namespace

std::vector<std::vector<int32_t>> split_tokens(int64_t length, const TokenSplit& split, std::span<const int32_t> documents) {
  LOCKSTEP_CHECK(length > 0 && split.ranks > 0, length, " tokens over ", split.ranks, " ranks");
  check_documents(length, documents);
  Pieces pieces(static_cast<size_t>(split.ranks));
  if (split.ranks == 1) {
    pieces[0] = {{0, length}};
  } else if (split.split == config::ContextSplit::kContiguous) {
    const int64_t part = (length + split.ranks - 1) / split.ranks;
    for (int64_t rank = 0; rank < split.ranks; ++rank) pieces[static_cast<size_t>(rank)] = {{rank * part, (rank + 1) * part}};
  } else {
    pieces = zigzag(length, split, documents);
  }
  std::vector<std::vector<int32_t>> places;
  for (std::vector<Piece>& of_rank : pieces) places.push_back(places_of(std::move(of_rank)));
  return places;
}

std::vector<int64_t> attention_pairs(int64_t length, const std::vector<std::vector<int32_t>>& places, std::span<const int32_t> documents,
                                     int64_t window) {
  check_documents(length, documents);
  std::vector<int64_t> pairs;
  for (const std::vector<int32_t>& of_rank : places) {
    int64_t sum = 0;
    size_t document = 0;  // moves forwards with the places
    for (const int32_t place : of_rank) {
      while (document + 1 < documents.size() && documents[document + 1] <= place) ++document;
      const int64_t seen = place < length ? int64_t{place} - documents[document] + 1 : 1;
      sum += window > 0 ? std::min(seen, window) : seen;
    }
    pairs.push_back(sum);
  }
  return pairs;
}

}  // namespace lockstep::data
