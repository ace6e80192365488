#include "lockstep/arch/params.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

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
  for (size_t i = 0; i < unit.slots.size(); ++i) {
    const ParamSpec& spec = row(table, unit.slots[i]);
    const size_t slots = spec.update.optimizer->slots.size();
    if (i > 0 && !spec.fuse.empty() && spec.fuse == row(table, unit.slots[i - 1]).fuse) {
      found.back().slots = std::max(found.back().slots, slots);
      continue;
    }
    const int64_t begin = i == 0 ? 0 : unit.slots[i].offset - unit.begin;
    if (i > 0) found.back().end = begin;
    found.push_back({.begin = begin, .end = unit.numel(), .slots = slots});
  }
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

std::vector<SlotBuffer> slot_buffers(const std::vector<ParamSpec>& table, const FlatUnit& unit) {
  std::vector<SlotBuffer> buffers;
  std::set<std::pair<size_t, std::string_view>> texts;
  for (const FlatSlot& slot : unit.slots) {
    const std::vector<StateSlot>& slots = row(table, slot).update.optimizer->slots;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (i == buffers.size()) buffers.push_back({.dtype = slots[i].dtype});
      LOCKSTEP_CHECK(buffers[i].dtype == slots[i].dtype, "slot ", i, " of ", row(table, slot).name, " has another type than its neighbours'");
      if (texts.emplace(i, slots[i].text).second) buffers[i].text += cat(buffers[i].text.empty() ? "" : " or ", slots[i].text);
    }
  }
  const std::vector<Stretch> all = stretches(table, unit);
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].numel = most_covered(all, i, unit.part(), unit.shards);
  return buffers;
}

int64_t update_bytes(const std::vector<ParamSpec>& table, const FlatUnit& unit) {
  int64_t bytes = unit.part() * config::bytes_of(config::Precision::kFp32);
  for (const SlotBuffer& buffer : slot_buffers(table, unit)) bytes += buffer.numel * config::bytes_of(buffer.dtype);
  return bytes;
}

int64_t update_bytes(const std::vector<ParamSpec>& table, const FlatLayout& flat) {
  int64_t bytes = 0;
  for (const FlatUnit& unit : flat.units) bytes += update_bytes(table, unit);
  return bytes;
}

std::vector<std::vector<int64_t>> slot_offsets(const std::vector<ParamSpec>& table, const FlatUnit& unit, int shard) {
  const std::vector<Stretch> all = stretches(table, unit);
  const int64_t begin = unit.part() * shard;
  std::vector<std::vector<int64_t>> offsets;
  for (const ShardSlot& piece : shard_slots(unit, shard)) {
    const size_t slots = table[static_cast<size_t>(piece.param)].update.optimizer->slots.size();
    std::vector<int64_t>& of_piece = offsets.emplace_back();
    for (size_t i = 0; i < slots; ++i) of_piece.push_back(covered(all, i, begin, begin + piece.offset));
  }
  return offsets;
}

std::vector<StateSlot> slots_of(const std::vector<ParamSpec>& table) {
  std::vector<StateSlot> slots;
  std::set<std::string_view> known;
  const auto add = [&](const OptimizerSpec& optimizer) {
    for (const StateSlot& slot : optimizer.slots)
      if (known.insert(slot.name).second) slots.push_back(slot);
  };
  for (const OptimizerSpec& optimizer : optimizer_specs())
    if (std::ranges::any_of(table, [&](const ParamSpec& spec) { return spec.update.optimizer == &optimizer; })) add(optimizer);
  for (const ParamSpec& spec : table) add(*spec.update.optimizer);  // of no registry
  return slots;
}

}  // namespace lockstep::arch
