#include "lockstep/data/bpe_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/hash.h"
#include "lockstep/data/utf8.h"

namespace lockstep::data {
namespace {

constexpr size_t kCacheSlots = size_t{1} << 17;
constexpr size_t kLongestCached = 64;  // bytes; longer pieces are rarely words

bool later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank_and_position > b.rank_and_position;
}

[[noreturn]] void no_token_for(std::string_view symbol) {
  const std::string name = symbol.size() == 1 ? cat("byte ", int{static_cast<uint8_t>(symbol.front())})
                                              : cat("\"", symbol, "\"");
  throw DataError({.code = "LS1212", .what = cat("the vocabulary has no token for ", name)});
}

}  // namespace

PieceCache::PieceCache() : slots_(kCacheSlots) {}

size_t PieceCache::index_of(std::string_view piece, uint64_t hash) const {
  for (size_t index = hash & (kCacheSlots - 1);; index = (index + 1) & (kCacheSlots - 1)) {
    const Slot& slot = slots_[index];
    if (slot.text_size == 0) return index;
    if (slot.hash == hash && std::string_view(text_).substr(slot.text_at, slot.text_size) == piece) return index;
  }
}

bool PieceCache::find(std::string_view piece, uint64_t hash, std::vector<int32_t>& out) const {
  const Slot& slot = slots_[index_of(piece, hash)];
  if (slot.text_size == 0) return false;
  const auto first = ids_.begin() + slot.id_at;
  out.insert(out.end(), first, first + slot.id_count);
  return true;
}

void PieceCache::insert(std::string_view piece, uint64_t hash, const int32_t* ids, size_t count) {
  if (2 * used_ >= kCacheSlots) *this = PieceCache();
  slots_[index_of(piece, hash)] = {.hash = hash,
                                   .text_at = static_cast<uint32_t>(text_.size()),
                                   .id_at = static_cast<uint32_t>(ids_.size()),
                                   .text_size = static_cast<uint16_t>(piece.size()),
                                   .id_count = static_cast<uint16_t>(count)};
  text_ += piece;
  ids_.insert(ids_.end(), ids, ids + count);
  ++used_;
}

BpeModel::BpeModel(Alphabet alphabet) : alphabet_(alphabet) {
  byte_ids_.fill(-1);
  fallback_ids_.fill(-1);
}

size_t BpeModel::Hash::operator()(std::string_view text) const {
  return hash64(text);
}

void BpeModel::set_unknown(int32_t id, bool fuse) {
  unknown_id_ = id;
  fuse_unknown_ = fuse;
}

void BpeModel::encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  if (piece.size() > kLongestCached) return merge(piece, scratch, out);
  const uint64_t hash = hash64(piece);
  if (scratch.cache.find(piece, hash, out)) return;
  const size_t before = out.size();
  merge(piece, scratch, out);
  scratch.cache.insert(piece, hash, out.data() + before, out.size() - before);
}

// The pair at `position` and its right neighbour, if it can be merged.
void BpeModel::push_candidate(BpeScratch& scratch, int32_t position) const {
  const auto& symbols = scratch.symbols;
  if (position < 0) return;
  const auto& left = symbols[static_cast<size_t>(position)];
  if (left.next < 0) return;
  const Merge* merge = merges_.find(left.id, symbols[static_cast<size_t>(left.next)].id);
  if (merge == nullptr) return;
  scratch.heap.push_back({uint64_t{merge->rank} << 32 | static_cast<uint32_t>(position), merge->id});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
}

// Each byte of a code point as its own token.
bool BpeModel::read_fallback(std::string_view symbol, BpeScratch& scratch) const {
  const auto id_of = [&](char byte) { return fallback_ids_[static_cast<uint8_t>(byte)]; };
  if (!std::all_of(symbol.begin(), symbol.end(), [&](char byte) { return id_of(byte) >= 0; })) return false;
  for (const char byte : symbol) scratch.symbols.push_back({.id = id_of(byte), .previous = 0, .next = 0});
  return true;
}

void BpeModel::read_symbols(std::string_view piece, BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  bool in_unknown = false;  // an unknown token that a next one may join
  for (size_t at = 0; at < piece.size();) {
    const size_t begin = at;
    int32_t id = -1;
    if (alphabet_ == Alphabet::kBytes) {
      id = byte_ids_[static_cast<uint8_t>(piece[at++])];
    } else {
      const int32_t* known = code_point_ids_.find(static_cast<int32_t>(decode_utf8(piece, at)), 0);
      if (known != nullptr) id = *known;
    }
    if (id < 0) {
      const std::string_view symbol = piece.substr(begin, at - begin);
      if (alphabet_ == Alphabet::kCodePoints && read_fallback(symbol, scratch)) continue;
      if (unknown_id_ < 0) no_token_for(symbol);
      if (std::exchange(in_unknown, true) && fuse_unknown_) continue;
      id = unknown_id_;
    } else {
      in_unknown = false;
    }
    symbols.push_back({.id = id, .previous = 0, .next = 0});
  }
  const auto size = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < size; ++i) {
    symbols[static_cast<size_t>(i)].previous = i - 1;
    symbols[static_cast<size_t>(i)].next = i + 1 < size ? i + 1 : -1;
  }
}

void BpeModel::merge(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const {
  if (!whole_.empty()) {
    const auto found = whole_.find(piece);
    if (found != whole_.end()) return out.push_back(found->second);
  }
  if (piece.size() > std::numeric_limits<int32_t>::max())
    throw DataError({.code = "LS1212", .what = cat("a piece of ", piece.size(), " bytes is too long to encode")});
  read_symbols(piece, scratch);
  auto& symbols = scratch.symbols;
  const auto at = [&symbols](int32_t index) -> BpeScratch::Symbol& { return symbols[static_cast<size_t>(index)]; };
  const auto size = static_cast<int32_t>(symbols.size());
  scratch.heap.clear();
  scratch.steps += symbols.size();
  for (int32_t i = 0; i < size; ++i) push_candidate(scratch, i);

  while (!scratch.heap.empty()) {
    const BpeScratch::Candidate top = scratch.heap.front();
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), later);
    scratch.heap.pop_back();
    ++scratch.steps;
    const auto position = static_cast<int32_t>(top.rank_and_position & 0xFFFFFFFFu);
    auto& left = at(position);
    if (left.id < 0 || left.next < 0) continue;
    // Stale if either side has grown since: the pair then spells a longer text, so no merge of it has the same id.
    auto& right = at(left.next);
    const Merge* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->id != top.merged_id) continue;
    left.id = top.merged_id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) at(left.next).previous = position;
    push_candidate(scratch, left.previous);
    push_candidate(scratch, position);
  }
  if (size == 0) return;
  for (int32_t i = 0; i >= 0; i = at(i).next) out.push_back(at(i).id);
}

}  // namespace lockstep::data
