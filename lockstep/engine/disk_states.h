// FETCH and EVICT of optimizer state that lies on disk: double buffered, read and written by a thread of their own
// (Rajbhandari et al. 2021, ZeRO-Infinity, section 5.1).
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/arch/params.h"
#include "lockstep/engine/copy_queue.h"
#include "lockstep/engine/disk_tier.h"
#include "lockstep/engine/unit_buffers.h"

namespace lockstep::engine {

at::ScalarType scalar_type(config::Precision precision);

// What of a unit's part lies outside the device, one field behind the other in a block of memory, each a region of the disk: the
// fp32 values, the slots (arch::slot_buffers) and, with a compute copy, a bf16 copy of the values.
struct StateFields {
  struct Field {
    std::string name{};  // "values"
    at::ScalarType dtype = at::kFloat;
    int64_t numel = 0;
    int64_t offset = 0;  // bytes, in the block
    int64_t bytes = 0;
  };
  // `numel`: elements of the part, hence of the values; a slot may have fewer.
  StateFields(int64_t numel, const std::vector<arch::SlotBuffer>& slots, bool compute_copy);

  static constexpr size_t kValues = 0;
  static constexpr size_t slot(size_t index) { return 1 + index; }
  // What is copied to the device: the bf16 copy where there is one, else the values.
  size_t compute() const { return updated < all.size() ? updated : kValues; }

  std::vector<Field> all{};
  size_t updated = 0;  // the first of them, which an update reads: all but the copy
  int64_t bytes = 0;   // of the block
};

// Of what is offloaded to the host, and of it to disk.
struct HostStatesOptions {
  std::vector<std::vector<arch::SlotBuffer>> slots{};  // of every unit
  std::vector<bool> compute_copies{};  // of every unit: a bf16 copy of the values beside them; empty: none
  std::vector<int> disk_units{};  // ids of the units whose states lie on disk, and are here while fetched
  std::vector<std::string> names{};  // of the units: "blocks.3"
  std::filesystem::path disk_path{};
  int rank = 0;
  bool pinned = false;  // the device is a GPU
  std::shared_ptr<MemoryAccount> memory = nullptr;
};

class DiskStates {
 public:
  // Of parts, by index of their unit. `blocks`: transient, a unit's states side by side; outlives this. Errors of DiskTier.
  DiskStates(const std::map<size_t, StateFields>& units, UnitBuffers& blocks, const HostStatesOptions& options);

  // Takes one of the two staging buffers for a unit and starts to read its states into it. ready() waits for them.
  void fetch(size_t unit);
  void ready(size_t unit) { places_.at(unit).reading.wait(); }
  // Starts to write them back; the buffer is free for the next fetch, which is read behind this.
  void evict(size_t unit);
  // Starts the copy of the values, or of the bf16 copy where there is one, to the device: values from the staging buffer
  // where the unit is fetched, else from disk.
  Copy fetch_parameters(size_t unit, const at::Tensor& to);
  // The same at once, between steps: the states of a unit in a staging buffer (zeros before the first close), and back.
  void open(size_t unit);
  void close(size_t unit);

  // Between steps: a field as memory of the file. accept() after writes to it.
  at::Tensor mapped(size_t unit, size_t field);
  void accept() { tier_->accept(); }
  // What a step that was broken off has fetched: dropped, it did not change.
  void abandon();

  CopyTotals take_totals() { return queue_.take_totals(); }
  const DiskTier& tier() const { return *tier_; }

 private:
  struct Place {
    std::string name;
    StateFields fields;
    size_t first_region = 0;  // one region per field
    at::Tensor buffer{};      // undefined: not fetched
    Copy reading{};
  };
  Place& take_buffer(size_t unit);
  void give_back(size_t unit);
  // From the disk into the buffer that the unit has taken, the first fields; and all of them back.
  std::function<void()> read(const Place& place, size_t fields) const;
  std::function<void()> write(const Place& place) const;

  UnitBuffers& blocks_;
  std::shared_ptr<DiskTier> tier_;
  std::map<size_t, Place> places_;      // by unit
  std::vector<at::Tensor> free_;        // staging buffers, of two: fp32, as long as the largest block
  CopyQueue queue_;                     // in order: a buffer is written to disk before the next unit is read into it
};

}  // namespace lockstep::engine
