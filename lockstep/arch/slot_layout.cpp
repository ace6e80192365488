#include "lockstep/arch/slot_layout.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "lockstep/base/check.h"

namespace lockstep::arch {
namespace {

// Elements [begin, end) of a unit whose parameters have so many slots. Fused rows count as one, with the most that any of them
// has, and padding belongs to what stands before it: so borders are the same on all ranks of tp (flat_layout).
struct Stretch {
  int64_t begin = 0;
  int64_t end = 0;
  size_t slots = 0;
};

const ParamSpec& row(const std::vector<ParamSpec>& table, const FlatSlot& slot) { return table[static_cast<size_t>(slot.param)]; }

std::vector<Stretch> stretches(const std::vector<ParamSpec>& table, const FlatUnit& unit) {
  std::vector<Stretch> found;
  for (size_t i = 0; i < unit.slots.size();) {
    const std::string& fuse = row(table, unit.slots[i]).fuse;
    const int64_t begin = i == 0 ? 0 : unit.slots[i].offset - unit.begin;
    size_t slots = 0, next = i;
    do {
      slots = std::max(slots, row(table, unit.slots[next]).update.optimizer->slots.size());
      ++next;
    } while (next < unit.slots.size() && !fuse.empty() && row(table, unit.slots[next]).fuse == fuse);
    if (!found.empty()) found.back().end = begin;
    if (found.empty() || found.back().slots != slots) found.push_back({.begin = begin, .end = 0, .slots = slots});
    i = next;
  }
  if (!found.empty()) found.back().end = unit.numel();
  return found;
}

// Elements of [begin, end) that have slot `index`.
int64_t covered(const std::vector<Stretch>& all, size_t index, int64_t begin, int64_t end) {
  int64_t numel = 0;
  for (const Stretch& stretch : all)
    if (stretch.slots > index) numel += std::max(int64_t{0}, std::min(end, stretch.end) - std::max(begin, stretch.begin));
  return numel;
}

// The most that any part has: parts in which a stretch begins or ends, and one that lies inside it.
int64_t most_covered(const std::vector<Stretch>& all, size_t index, int64_t size, int shards) {
  int64_t most = 0;
  for (const Stretch& stretch : all) {
    if (stretch.end == stretch.begin) continue;
    const int64_t first = stretch.begin / size, last = (stretch.end - 1) / size;
    for (const int64_t part : {first, std::min(first + 1, int64_t{shards} - 1), last})
      most = std::max(most, covered(all, index, part * size, (part + 1) * size));
  }
  return most;
}

}  // namespace

std::vector<SlotBuffer> slot_buffers(const std::vector<ParamSpec>& table, const FlatLayout& flat, const FlatUnit& unit) {
  std::vector<SlotBuffer> buffers;
  std::vector<std::set<std::string_view>> texts;
  for (const FlatSlot& slot : unit.slots) {
    const std::vector<StateSlot>& slots = row(table, slot).update.optimizer->slots;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (i == buffers.size()) {
        buffers.push_back({.text = "", .dtype = slots[i].dtype});
        texts.emplace_back();
      }
      LOCKSTEP_CHECK(buffers[i].dtype == slots[i].dtype, "slot ", i, " of ", row(table, slot).name, " has another type than its neighbours'");
      if (texts[i].insert(slots[i].text).second) buffers[i].text += (buffers[i].text.empty() ? "" : " or ") + std::string(slots[i].text);
    }
  }
  const std::vector<Stretch> all = stretches(table, unit);
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].numel = most_covered(all, i, unit.numel() / flat.shards, flat.shards);
  return buffers;
}

int64_t slot_bytes(const std::vector<SlotBuffer>& buffers) {
  int64_t bytes = 0;
  for (const SlotBuffer& buffer : buffers) bytes += buffer.numel * StateSlot{.dtype = buffer.dtype}.element_size();
  return bytes;
}

int64_t update_bytes(const std::vector<ParamSpec>& table, const FlatLayout& flat, const FlatUnit& unit) {
  constexpr int64_t kValueBytes = 4;
  return unit.numel() / flat.shards * kValueBytes + slot_bytes(slot_buffers(table, flat, unit));
}

int64_t slot_bytes(const std::vector<ParamSpec>& table, const FlatLayout& flat) {
  int64_t bytes = 0;
  for (const FlatUnit& unit : flat.units) bytes += slot_bytes(slot_buffers(table, flat, unit));
  return bytes;
}

int64_t update_bytes(const std::vector<ParamSpec>& table, const FlatLayout& flat) {
  int64_t bytes = 0;
  for (const FlatUnit& unit : flat.units) bytes += update_bytes(table, flat, unit);
  return bytes;
}

std::vector<std::vector<int64_t>> slot_offsets(const std::vector<ParamSpec>& table, const FlatLayout& flat, const FlatUnit& unit,
                                               int shard) {
  const std::vector<Stretch> all = stretches(table, unit);
  const int64_t begin = unit.numel() / flat.shards * shard;
  std::vector<std::vector<int64_t>> offsets;
  for (const ShardSlot& piece : shard_slots(flat, unit, shard)) {
    const size_t slots = table[static_cast<size_t>(piece.param)].update.optimizer->slots.size();
    std::vector<int64_t>& of_piece = offsets.emplace_back();
    for (size_t i = 0; i < slots; ++i) of_piece.push_back(covered(all, i, begin, begin + piece.offset));
  }
  return offsets;
}

std::vector<StateSlot> slots_of(const std::vector<ParamSpec>& table) {
  std::vector<StateSlot> slots;
  std::set<std::string_view> known;
  std::vector<const OptimizerSpec*> specs;
  for (const OptimizerSpec& spec : optimizer_specs()) specs.push_back(&spec);
  for (const ParamSpec& spec : table)
    if (std::ranges::find(specs, spec.update.optimizer) == specs.end()) specs.push_back(spec.update.optimizer);
  for (const OptimizerSpec* optimizer : specs) {
    if (std::ranges::find(table, optimizer, [](const ParamSpec& spec) { return spec.update.optimizer; }) == table.end()) continue;
    for (const StateSlot& slot : optimizer->slots)
      if (known.insert(slot.name).second) slots.push_back(slot);
  }
  return slots;
}

}  // namespace lockstep::arch
