#include "lockstep/arch/params.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "lockstep/arch/layer_description.h"
#include "lockstep/base/check.h"

namespace lockstep::arch {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

ParamSpec spec_of(const LayerSpec& layer, const ParameterRow& row, int head) {
  const std::string_view kind = row.bias ? ".bias" : ".weight";
  const auto named = [&](std::string_view part) { return cat(layer.name, part.empty() ? "" : ".", part, kind); };
  ParamSpec spec;
  spec.name = named(row.part);
  spec.shape.push_back(row.rows);
  if (row.columns >= 0) spec.shape.push_back(row.columns);
  spec.init = row.init;
  spec.init_std = row.init_std;
  spec.weight_decay = spec.shape.size() >= 2;
  spec.layer = layer.index;
  if (!row.fused.empty()) spec.fuse = named(row.fused);
  if (row.in_head) spec.tied_layers = {head};
  spec.cut = row.cut;
  if (row.columns < 0)
    spec.of = spec.name.ends_with(".bias") ? config::ParameterClass::kBias : config::ParameterClass::kNorm;
  else if (layer.kind == LayerKind::kEmbedding)
    spec.of = config::ParameterClass::kEmbedding;
  else if (layer.kind == LayerKind::kHead)
    spec.of = config::ParameterClass::kHead;
  spec.per_head = row.per_head;
  return spec;
}

// Gives the row its piece of `shard`.
void place(const ModelConfig& model, const TensorShard& shard, ParamSpec& spec) {
  spec.local_shape = spec.shape;
  spec.local_offset.assign(spec.shape.size(), 0);
  spec.largest_numel = spec.numel();
  if (shard.size == 1) return;
  if (spec.cut == TensorCut::kNone) {
    spec.copies = shard.size;
    spec.copy = shard.rank;
    spec.partial = shard.sequence_parallel || spec.per_head;
    return;
  }
  const bool by_heads = spec.cut == TensorCut::kKeyValueHeads;
  const int parts = by_heads ? static_cast<int>(std::min<int64_t>(model.kv_heads, shard.size)) : shard.size;
  spec.copies = shard.size / parts;
  spec.copy = shard.rank % spec.copies;
  spec.partial = spec.copies > 1;
  const int dim = spec.cut == TensorCut::kColumns ? 1 : 0;
  const auto at = static_cast<size_t>(dim);
  const mesh::Range range = mesh::shard_range(spec.shape[at], parts, shard.rank / spec.copies);
  spec.largest_numel = spec.numel() / spec.shape[at] * mesh::shard_range(spec.shape[at], parts, 0).size();
  spec.local_shape[at] = range.size();
  spec.local_offset[at] = range.begin;
  spec.placements.insert_or_assign(mesh::Axis::kTp, mesh::Placement::shard(dim, spec.copies));
}

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

LayerSpec layer_spec(const ModelConfig& model, int index) {
  const int head = static_cast<int>(model.layers) + 1;
  if (index == 0) return {.kind = LayerKind::kEmbedding, .index = index, .name = "embed"};
  if (index == head) return {.kind = LayerKind::kHead, .index = index, .name = "head"};
  return {.kind = LayerKind::kBlock, .index = index, .name = cat("blocks.", index - 1)};
}

std::vector<LayerSpec> layer_table(const ModelConfig& model) {
  std::vector<LayerSpec> layers;
  for (int i = 0; i < static_cast<int>(model.layers) + 2; ++i) layers.push_back(layer_spec(model, i));
  return layers;
}

int64_t ParamSpec::numel() const {
  return product(shape);
}
int64_t ParamSpec::local_numel() const {
  return product(local_shape);
}

std::vector<ParamSpec> param_table(const ModelConfig& model, const TensorShard& shard) {
  std::vector<int> layers(static_cast<size_t>(model.layers) + 2);
  std::iota(layers.begin(), layers.end(), 0);
  return param_table(model, shard, layers);
}

std::vector<ParamSpec> param_table(const ModelConfig& model, const TensorShard& shard, const std::vector<int>& layers) {
  LOCKSTEP_CHECK(shard.rank >= 0 && shard.rank < shard.size, "rank ", shard.rank, " of ", shard.size);
  std::vector<ParamSpec> table;
  for (const int index : layers) {
    const LayerSpec layer = layer_spec(model, index);
    for (const ParameterRow& row : layer_parameters(model, layer))
      place(model, shard, table.emplace_back(spec_of(layer, row, static_cast<int>(model.layers) + 1)));
  }
  return table;
}

int64_t num_parameters(const ModelConfig& model) {
  int64_t total = 0;
  for (const ParamSpec& spec : param_table(model)) total += spec.numel();
  return total;
}

FlatLayout flat_layout(const std::vector<ParamSpec>& table, int shards) {
  LOCKSTEP_CHECK(shards >= 1, "shards: ", shards);
  constexpr int64_t kAlignment = 16;  // elements: 64 bytes of fp32
  FlatLayout flat{.units = {}, .numel = 0, .shards = shards};
  for (size_t first = 0; first < table.size();) {
    FlatUnit unit{.layer = table[first].layer, .begin = flat.numel, .end = 0, .slots = {}};
    int64_t used = 0;
    int64_t padding = 0;  // of the fused group: where another rank's pieces are larger
    size_t i = first;
    for (; i < table.size() && table[i].layer == unit.layer; ++i) {
      const bool starts_group = i == first || table[i].fuse.empty() || table[i].fuse != table[i - 1].fuse;
      if (starts_group) used += std::exchange(padding, 0);
      unit.slots.push_back({.param = static_cast<int>(i), .offset = unit.begin + used, .numel = table[i].local_numel()});
      used += table[i].local_numel();
      padding += table[i].largest_numel - table[i].local_numel();
    }
    used += padding;
    unit.end = unit.begin + (shards == 1 ? used : round_up(used, shards * kAlignment));
    flat.numel = unit.end;
    flat.units.push_back(std::move(unit));
    first = i;
  }
  return flat;
}

std::vector<ShardSlot> shard_slots(const FlatLayout& flat, const FlatUnit& unit, int shard) {
  LOCKSTEP_CHECK(shard >= 0 && shard < flat.shards, "shard ", shard, " of ", flat.shards);
  const int64_t size = unit.numel() / flat.shards, first = unit.begin + shard * size, last = first + size;
  std::vector<ShardSlot> slots;
  for (const FlatSlot& slot : unit.slots) {
    const int64_t begin = std::max(first, slot.offset), end = std::min(last, slot.offset + slot.numel);
    if (begin >= end) continue;
    slots.push_back(
        {.param = slot.param, .begin = begin - slot.offset, .numel = end - begin, .offset = begin - first});
  }
  return slots;
}

std::vector<Rectangle> rectangles(const std::vector<int64_t>& shape, int64_t begin, int64_t numel) {
  LOCKSTEP_CHECK(!shape.empty() && shape.size() <= 2, "rectangles of ", shape.size(), " dims");
  if (shape.size() == 1) return {{.offset = {begin}, .shape = {numel}, .begin = 0}};
  const int64_t width = shape[1], end = begin + numel;
  std::vector<Rectangle> parts;
  for (int64_t at = begin; at < end;) {
    const int64_t row = at / width, column = at % width;
    const bool whole_rows = column == 0 && end - at >= width;
    const int64_t rows = whole_rows ? (end - at) / width : 1;
    const int64_t columns = whole_rows ? width : std::min(width - column, end - at);
    parts.push_back({.offset = {row, column}, .shape = {rows, columns}, .begin = at - begin});
    at += rows * columns;
  }
  return parts;
}

}  // namespace lockstep::arch
