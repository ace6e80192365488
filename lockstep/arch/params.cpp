#include "lockstep/arch/params.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/arch/layer_description.h"
#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::arch {
namespace {

using config::OptimizerKind;
using config::OptimizerRule;

// Partial over tp whatever the rows of a rank are: it has its own heads, or routes its own rows.
bool always_partial(const ParamSpec& spec) {
  return spec.per_head || spec.of == config::ParameterClass::kRouter || spec.update.optimizer->fixed;
}

int num_layers(const ModelConfig& model) { return static_cast<int>(model.layers) + 2; }

void cut(ParamSpec& spec, int dim, int parts, int index) {
  spec.cut_dim = dim;
  const auto at = static_cast<size_t>(dim);
  const mesh::Range range = mesh::shard_range(spec.shape[at], parts, index);
  spec.largest_numel = spec.numel() / spec.shape[at] * mesh::shard_range(spec.shape[at], parts, 0).size();
  spec.local_shape[at] = range.size();
  spec.local_offset[at] = range.begin;
}

int unit_id(const ModelConfig& model, const ParamSpec& spec) { return spec.layer + static_cast<int>(spec.group) * num_layers(model); }

void place_expert(const ModelConfig& model, const ExpertShard& shard, ParamSpec& spec) {
  spec.group = ParameterGroup::kExperts;
  spec.unit = unit_id(model, spec);
  if (shard.etp > 1) cut(spec, spec.cut == TensorCut::kColumns ? 1 : 0, shard.etp, shard.etp_rank);
}

// Fewer groups of a state space than ranks, or not as many on each: a rank has all, and uses those of its heads.
bool shares_groups(const ModelConfig& model, const TensorShard& shard, const ParamSpec& spec) {
  return spec.cut == TensorCut::kGroups && shard.size > 1 && model.state_space.groups % shard.size != 0;
}

// Gives the row its piece of `shard`.
void place(const ModelConfig& model, const TensorShard& shard, ParamSpec& spec) {
  spec.local_shape = spec.shape;
  spec.local_offset.assign(spec.shape.size(), 0);
  spec.largest_numel = spec.numel();
  if (spec.expert >= 0) return place_expert(model, shard.experts, spec);
  if (shares_groups(model, shard, spec)) spec.cut = TensorCut::kNone, spec.per_head = true;
  LOCKSTEP_CHECK(!spec.fp32 || spec.cut == TensorCut::kNone, spec.name, " is used in fp32 and cut");
  if (spec.fp32 && shard.fp32_group) spec.group = ParameterGroup::kFp32;
  spec.unit = unit_id(model, spec);
  if (shard.size == 1) return;
  if (spec.cut == TensorCut::kNone) {
    spec.partial = shard.sequence_parallel || always_partial(spec);
    // An embedding is one unit: two stages may hold it. A matrix stays with the others, whose optimizer has ranks to update it whole, and
    // what is fused with its neighbours stays beside them.
    if (spec.partial && shard.row_groups && spec.layer > 0 && spec.of != config::ParameterClass::kMatrix && spec.fuse.empty()) {
      if (spec.group != ParameterGroup::kFp32) spec.group = ParameterGroup::kRows;
      spec.unit = unit_id(model, spec);
      spec.partial = false;  // its domain sums them, and knows the copies
      return;
    }
    LOCKSTEP_CHECK(spec.group != ParameterGroup::kFp32 || !shard.row_groups, spec.name, " is not summed over tp as its group is");
    spec.copies = shard.size;
    spec.copy = shard.rank;
    return;
  }
  const bool by_heads = spec.cut == TensorCut::kKeyValueHeads;
  const int parts = by_heads ? static_cast<int>(std::min<int64_t>(model.kv_heads, shard.size)) : shard.size;
  spec.copies = shard.size / parts;
  spec.copy = shard.rank % spec.copies;
  spec.partial = spec.copies > 1;
  cut(spec, spec.cut == TensorCut::kColumns ? 1 : 0, parts, shard.rank / spec.copies);
}

// The experts of a rank.
mesh::Range own_experts(const ModelConfig& model, const ExpertShard& shard) {
  const int64_t each = model.experts.count / shard.ep;
  return {.begin = shard.ep_rank * each, .end = (shard.ep_rank + 1) * each};
}

// `pattern` with * for any text, of all of `name`.
bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*') return !name.empty() && name[0] == pattern[0] && matches(pattern.substr(1), name.substr(1));
  for (size_t skipped = 0; skipped <= name.size(); ++skipped)
    if (matches(pattern.substr(1), name.substr(skipped))) return true;
  return false;
}

bool names(const OptimizerRule& rule, const ParamSpec& spec) {
  return (rule.match.empty() || matches(rule.match, spec.name)) && (!rule.of || *rule.of == spec.of);
}

const OptimizerRule* rule_of(const config::OptimizerSection& choice, const ParamSpec& spec) {
  for (const OptimizerRule& rule : choice.rules.list)
    if (names(rule, spec)) return &rule;
  return nullptr;
}

const OptimizerSpec& optimizer_of(const config::OptimizerSection& choice, const OptimizerRule* rule, const ParamSpec& spec) {
  if (rule && rule->optimizer) return optimizer_spec(config::name_of(*rule->optimizer));
  const OptimizerSpec& chosen = optimizer_spec(config::name_of(choice.kind));
  return chosen.whole_matrix && spec.of != config::ParameterClass::kMatrix ? optimizer_spec() : chosen;
}

bool fits(const OptimizerSpec& optimizer, const ParamSpec& spec) { return !optimizer.whole_matrix || spec.shape.size() == 2; }

}  // namespace

LayerSpec layer_spec(const ModelConfig& model, int index) {
  const int head = static_cast<int>(model.layers) + 1;
  if (index == 0) return {.kind = LayerKind::kEmbedding, .index = index, .name = "embed"};
  if (index == head) return {.kind = LayerKind::kHead, .index = index, .name = "head"};
  return {.kind = LayerKind::kBlock, .index = index, .name = "blocks." + std::to_string(index - 1)};
}

std::vector<LayerSpec> layer_table(const ModelConfig& model) {
  std::vector<LayerSpec> layers;
  for (int i = 0; i < num_layers(model); ++i) layers.push_back(layer_spec(model, i));
  return layers;
}

int64_t elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<ParamSpec> param_table(const ModelConfig& model, const TensorShard& shard) {
  std::vector<int> layers(static_cast<size_t>(num_layers(model)));
  std::iota(layers.begin(), layers.end(), 0);
  return param_table(model, shard, layers);
}

std::vector<ParamSpec> param_table(const ModelConfig& model, const TensorShard& shard, const std::vector<int>& layers) {
  const ExpertShard& of = shard.experts;
  LOCKSTEP_CHECK(shard.rank >= 0 && shard.rank < shard.size, "rank ", shard.rank, " of ", shard.size);
  LOCKSTEP_CHECK(of.ep_rank >= 0 && of.ep_rank < of.ep && model.experts.count % of.ep == 0, model.experts.count, " experts, rank ",
                 of.ep_rank, " of ", of.ep);
  LOCKSTEP_CHECK(of.etp_rank >= 0 && of.etp_rank < of.etp, "rank ", of.etp_rank, " of ", of.etp);
  const mesh::Range experts = own_experts(model, of);
  std::vector<ParamSpec> table;
  for (const int index : layers)
    for (ParamSpec& spec : layer_parameters(model, layer_spec(model, index), experts))
      place(model, shard, table.emplace_back(std::move(spec)));
  return table;
}

int64_t num_parameters(const ModelConfig& model) {
  int64_t total = 0;
  for (const ParamSpec& spec : param_table(model)) total += spec.numel();
  return total;
}

// The experts of a block are of one size, so those of a token may be the first.
int64_t num_active_parameters(const ModelConfig& model) {
  int64_t total = 0;
  for (const ParamSpec& spec : param_table(model))
    if (spec.expert < model.experts.per_token) total += spec.numel();
  return total;
}

void choose_optimizers(const config::OptimizerSection& choice, std::vector<ParamSpec>& table) {
  if (choice.kind == OptimizerKind::kAdamW && choice.rules.list.empty()) return;  // as the rows are made
  for (ParamSpec& spec : table) {
    if (spec.update.optimizer->fixed) continue;
    const OptimizerRule* rule = rule_of(choice, spec);
    spec.update = {.optimizer = &optimizer_of(choice, rule, spec)};
    LOCKSTEP_CHECK(fits(*spec.update.optimizer, spec), spec.update.optimizer->id, " of ", spec.name, ", which is no matrix");
    if (!rule) continue;
    spec.update.lr_factor = rule->lr.value_or(1);
    spec.update.weight_decay = rule->decay;
    if (rule->decay) spec.weight_decay = *rule->decay > 0;
  }
}

std::vector<std::string> rule_problems(const config::OptimizerSection& choice, const std::vector<ParamSpec>& table) {
  std::vector<std::string> problems;
  std::set<const OptimizerRule*> used, told;
  for (const ParamSpec& spec : table) {
    if (spec.update.optimizer->fixed) continue;
    for (const OptimizerRule& rule : choice.rules.list)
      if (names(rule, spec)) used.insert(&rule);
    const OptimizerRule* rule = rule_of(choice, spec);
    if (fits(optimizer_of(choice, rule, spec), spec) || !told.insert(rule).second) continue;
    problems.push_back(cat("optimizer.rules gives ", spec.name, " to ", optimizer_of(choice, rule, spec).id,
                           ", which updates matrices, but its shape has ", spec.shape.size(), " dimensions"));
  }
  for (size_t i = 0; i < choice.rules.list.size(); ++i)
    if (!used.contains(&choice.rules.list[i])) problems.push_back(cat("rule ", i + 1, " of optimizer.rules names no parameter"));
  return problems;
}

bool is_scattered_matrix(const ParamSpec& spec, int shards) {
  return spec.update.optimizer->whole_matrix && (shards > 1 || spec.cut_dim >= 0);
}

FlatLayout flat_layout(const std::vector<ParamSpec>& table, const GroupShards& shards) {
  constexpr int64_t kAlignment = 16;  // elements: 64 bytes of fp32
  std::map<int, std::vector<size_t>> units;  // id -> rows
  for (size_t row = 0; row < table.size(); ++row) units[table[row].unit].push_back(row);
  FlatLayout flat;
  for (const auto& [id, rows] : units) {
    const ParamSpec& first = table[rows.front()];
    FlatUnit unit{.layer = first.layer, .begin = flat.numel, .end = 0, .slots = {}, .id = id, .group = first.group,
                  .shards = shards[static_cast<size_t>(first.group)], .part_begin = flat.parts};
    LOCKSTEP_CHECK(unit.shards >= 1, "shards: ", unit.shards);
    int64_t used = 0;
    int64_t padding = 0;  // of the fused group: where another rank's pieces are larger
    for (const size_t row : rows) {
      const ParamSpec& spec = table[row];
      const bool starts_group = row == rows.front() || spec.fuse.empty() || spec.fuse != table[row - 1].fuse;
      if (starts_group) used += std::exchange(padding, 0);
      unit.slots.push_back({.param = static_cast<int>(row), .offset = unit.begin + used, .numel = spec.local_numel()});
      used += spec.local_numel();
      padding += spec.largest_numel - spec.local_numel();
    }
    const int64_t multiple = unit.shards == 1 ? 1 : unit.shards * kAlignment;
    unit.end = unit.begin + (used + padding + multiple - 1) / multiple * multiple;
    flat.numel = unit.end;
    flat.parts += unit.part();
    flat.units.push_back(std::move(unit));
  }
  return flat;
}

size_t FlatLayout::index_of(int id) const {
  const auto found = std::ranges::find(units, id, &FlatUnit::id);
  LOCKSTEP_CHECK(found != units.end(), "there is no unit ", id);
  return static_cast<size_t>(found - units.begin());
}

std::vector<ShardSlot> shard_slots(const FlatUnit& unit, int shard) {
  LOCKSTEP_CHECK(shard >= 0 && shard < unit.shards, "shard ", shard, " of ", unit.shards);
  const int64_t size = unit.part(), first = unit.begin + shard * size, last = first + size;
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
