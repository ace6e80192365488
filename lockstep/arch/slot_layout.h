// Where the slots of optimizers lie. A parameter has those of its own optimizer; slot i of all parameters of a unit is one
// buffer, in which those that have an i-th slot stand side by side.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/arch/params.h"

namespace lockstep::arch {

// A slot of a unit: what a rank has of it.
struct SlotBuffer {
  std::string text{};  // in messages: "first moment"
  config::Precision dtype = config::Precision::kFp32;
  int64_t numel = 0;   // of each part: as many on all ranks, so a few may be unused
};
std::vector<SlotBuffer> slot_buffers(const std::vector<ParamSpec>& table, const FlatLayout& flat, const FlatUnit& unit);
int64_t slot_bytes(const std::vector<SlotBuffer>& buffers);

// Bytes that an update of a part reads and writes, and that a checkpoint has: the fp32 values and the slots.
int64_t update_bytes(const std::vector<ParamSpec>& table, const FlatLayout& flat, const FlatUnit& unit);
// The same of all units: of their slots alone, and with the values.
int64_t slot_bytes(const std::vector<ParamSpec>& table, const FlatLayout& flat);
int64_t update_bytes(const std::vector<ParamSpec>& table, const FlatLayout& flat);

// Of part `shard`: [piece of shard_slots()][slot of its optimizer], where the piece begins in the buffer.
std::vector<std::vector<int64_t>> slot_offsets(const std::vector<ParamSpec>& table, const FlatLayout& flat, const FlatUnit& unit,
                                               int shard);

// The slots of all optimizers in the table, by name, in the order of the registry: what can be asked of its parameters.
std::vector<StateSlot> slots_of(const std::vector<ParamSpec>& table);

}  // namespace lockstep::arch
