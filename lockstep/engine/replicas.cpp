#include "lockstep/engine/replicas.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "lockstep/base/check.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/exchange.h"
#include "lockstep/engine/digest.h"

namespace lockstep::engine {
namespace {

constexpr size_t kMaxTold = 8;

// Who holds the same.
enum Sharing : size_t { kWhole, kParts, kUncut, kHeads, kTied, kExperts, kExpertParts, kNumSharings };
constexpr std::array<const char*, kNumSharings> kAxes = {"dp", "dp_replicate", "tp", "kv", "tied", "edp", "edp_replicate"};
using SharedBy = std::array<bool, kNumSharings>;
using Ranks = std::array<comm::Communicator*, kNumSharings>;  // null: nobody else

std::string_view kind_text(StateKind kind, const arch::ParamSpec& spec) {
  if (kind == StateKind::kParameter) return "parameter";
  if (kind == StateKind::kMaster) return "master weight";
  return std::ranges::find(spec.update.optimizer->slots, kind.key, &arch::StateSlot::name)->text;
}

// A tensor, or what several that lie side by side have in common.
struct Piece {
  std::string text;  // "master weight blocks.1.mlp.up.weight"
  StateKind kind = StateKind::kParameter;
  int unit = 0;  // id
  at::Tensor values;  // contiguous
  SharedBy shared{};
};
using Key = std::pair<int, StateKind>;  // a unit's states of one kind

// Which of these ranks hold this state of the parameter as well.
SharedBy shared_by(const program::Layout& layout, const Ranks& ranks, const arch::ParamSpec& spec, StateKind kind) {
  const bool one_shard = layout.shards(spec.group) == 1;
  const bool whole = kind == StateKind::kParameter && (one_shard || !layout.transient_parameters(spec.group));
  const bool server = layout.server_mode();  // it alone has optimizer state
  const bool expert = spec.group == arch::ParameterGroup::kExperts;
  const Sharing all = expert ? kExperts : kWhole, parts = expert ? kExpertParts : kParts;
  SharedBy shared{};
  shared[all] = whole || (!server && ranks[parts] == ranks[all]);
  shared[parts] = !whole && !server && !shared[all];
  const bool by_domain = layout.sums_over_tensor(spec.group) && (whole || one_shard);  // over tp too
  shared[kUncut] = by_domain || (spec.copies > 1 && spec.cut == arch::TensorCut::kNone);
  shared[kHeads] = spec.copies > 1 && !shared[kUncut];
  shared[kTied] = spec.layer == 0;
  for (size_t by = 0; by < kNumSharings; ++by) shared[by] = shared[by] && ranks[by];
  return shared;
}

// Only what somebody else holds too.
std::vector<Piece> collect(Executor& executor, const Ranks& ranks, bool with_disk) {
  ParameterStore& store = executor.store();
  const program::Layout& layout = executor.layout();
  std::vector<Piece> pieces;
  const auto add = [&](const arch::ParamSpec& spec, StateKind kind, const at::Tensor& values) {
    const bool on_device = kind == StateKind::kParameter && !layout.offload.parameters;
    const bool on_disk = !on_device && store.host() && store.host()->on_disk(store.unit_of(spec.unit));
    const SharedBy shared = shared_by(layout, ranks, spec, kind);
    if (values.numel() == 0 || (on_disk && !with_disk) || shared == SharedBy{}) return;
    pieces.push_back({.text = cat(kind_text(kind, spec), " ", spec.name),
                      .kind = kind,
                      .unit = spec.unit,
                      .values = values.flatten(),
                      .shared = shared});
  };
  std::map<std::string, const arch::ParamSpec*> specs;
  for (const arch::ParamSpec& spec : store.table()) specs[spec.name] = &spec;
  for (const StateTensor& tensor : store.state()) add(*specs.at(tensor.name), tensor.kind, tensor.local);
  // Checkpoints have fp32 values once, as parameters; beside them the host has those that are updated.
  if (!store.host() || layout.offload.parameters) return pieces;
  for (size_t unit = 0; unit < store.layout().units.size(); ++unit) {
    if (store.dtype(unit) != at::kFloat || (store.host()->on_disk(unit) && !with_disk)) continue;
    const at::Tensor values = store.value_part(unit);
    for (const arch::ShardSlot& slot : store.slots(unit))
      add(store.table()[static_cast<size_t>(slot.param)], StateKind::kMaster, values.narrow(0, slot.offset, slot.numel));
  }
  return pieces;
}

bool follows(const Piece& piece, const Piece& before) {
  return piece.kind == before.kind && piece.unit == before.unit && piece.shared == before.shared &&
         piece.values.is_alias_of(before.values) &&
         piece.values.storage_offset() == before.values.storage_offset() + before.values.numel();
}

// What lies side by side is one piece: a device is asked less often.
std::vector<Piece> joined(const std::vector<Piece>& pieces) {
  std::vector<Piece> all;
  for (const Piece& piece : pieces) {
    if (all.empty() || !follows(piece, all.back())) {
      all.push_back(piece);
      continue;
    }
    at::Tensor& values = all.back().values;
    values = values.as_strided({values.numel() + piece.values.numel()}, {1}, values.storage_offset());
  }
  return all;
}

std::vector<int64_t> digests_of(const std::vector<Piece>& pieces) {
  std::vector<at::Tensor> tensors;
  for (const Piece& piece : pieces) tensors.push_back(piece.values);
  return digests(tensors);
}

// Of each unit and kind that is shared so; in the same order on all ranks that share it.
std::map<Key, int64_t> unit_digests(const std::vector<Piece>& pieces, const std::vector<int64_t>& digests, size_t sharing) {
  std::map<Key, std::vector<int64_t>> parts;
  for (size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i].shared[sharing]) parts[{pieces[i].unit, pieces[i].kind}].push_back(digests[i]);
  std::map<Key, int64_t> units;
  for (const auto& [key, numbers] : parts)
    units[key] = static_cast<int64_t>(hash64(numbers.data(), numbers.size() * sizeof(int64_t)));
  return units;
}

// "ranks 1,3 differ from ranks 0,2": those with the value that most have, or in a tie the first one, are right.
std::string who_differs(const std::vector<std::vector<int64_t>>& numbers, size_t column, const std::vector<int>& ranks) {
  std::map<int64_t, int> count;
  for (const auto& row : numbers) ++count[row[column]];
  int64_t right = numbers[0][column];
  for (const auto& row : numbers)
    if (count[row[column]] > count[right]) right = row[column];
  std::vector<int> good, bad;
  for (size_t i = 0; i < numbers.size(); ++i) (numbers[i][column] == right ? good : bad).push_back(ranks[i]);
  return cat(comm::ranks_text(bad), bad.size() == 1 ? " differs" : " differ", " from ", comm::ranks_text(good));
}

// The second look: which tensors of the units that differ. Collective over the group.
void name_tensors(const std::vector<Piece>& pieces, const std::set<Key>& keys, size_t sharing, comm::Communicator& group,
                  const Executor& executor, int rank, std::vector<std::string>& told) {
  // Ranks of cp hold the same parameters too.
  const bool over_context = sharing == kWhole && executor.layout().context_shard().ranks > 1;
  const std::string_view axes = over_context ? "dp x cp" : kAxes[sharing];
  std::vector<Piece> suspects;
  std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(suspects), [&](const Piece& piece) {
    return piece.shared[sharing] && keys.contains({piece.unit, piece.kind});
  });
  std::vector<int64_t> mine = digests_of(suspects);
  mine.push_back(rank);
  const auto numbers = comm::gather_numbers(group, program::call_id(program::Purpose::kReplicaTensors), mine);
  std::vector<int> ranks;
  for (const auto& row : numbers) ranks.push_back(static_cast<int>(row.back()));
  std::set<std::string> named;  // of a part there may be several pieces
  for (size_t i = 0; i < suspects.size(); ++i) {
    const bool same = std::all_of(numbers.begin(), numbers.end(), [&](const auto& row) { return row[i] == numbers[0][i]; });
    const std::string& what = suspects[i].text;
    if (!same && named.insert(what).second)
      told.push_back(cat(what, ": ", who_differs(numbers, i, ranks), " (", axes, ")"));
  }
}

// What all ranks tell, each thing once.
std::vector<std::string> shared_words(Groups& groups, const std::vector<std::string>& mine) {
  std::vector<std::string> all;
  std::set<std::string> seen;
  size_t more = 0;
  for (const std::string& text : comm::gather_texts(groups.world(), program::call_id(program::Purpose::kReplicaWords), join(mine, "\n")))
    for (const std::string& line : split(text, '\n'))
      if (!line.empty() && seen.insert(line).second) all.size() < kMaxTold ? all.push_back(line) : void(++more);
  if (more > 0) all.push_back(cat("and ", more, " more"));
  return all;
}

Ranks ranks_of(const program::Layout& layout, Groups& groups) {
  const program::Domain dense = layout.dense_domain();
  Ranks ranks = {groups.several(dense.sum), groups.several(dense.copies), groups.tensor(), groups.shared_heads(), groups.tied()};
  if (!layout.model.has_experts()) return ranks;
  const program::Domain experts = layout.domain(arch::ParameterGroup::kExperts);
  ranks[kExperts] = groups.several(experts.sum);
  ranks[kExpertParts] = groups.several(experts.copies);
  return ranks;
}

}  // namespace

std::vector<std::string> replica_differences(Executor& executor, Groups& groups, bool with_disk) {
  const Ranks ranks = ranks_of(executor.layout(), groups);
  const std::vector<Piece> pieces = collect(executor, ranks, with_disk);
  const std::vector<Piece> blocks = joined(pieces);
  const std::vector<int64_t> found = digests_of(blocks);
  groups.world().confirm();  // an aborted call leaves no differences that a replica is to blame for
  std::array<std::set<Key>, kNumSharings> differ;
  for (size_t by = 0; by < kNumSharings; ++by) {
    if (!ranks[by] || (by == kParts && ranks[by] == ranks[kWhole]) || (by == kExpertParts && ranks[by] == ranks[kExperts])) continue;
    const std::map<Key, int64_t> units = unit_digests(blocks, found, by);
    std::vector<int64_t> mine;
    for (const auto& [key, digest] : units) mine.push_back(digest);
    const auto all = comm::gather_numbers(*ranks[by], program::call_id(program::Purpose::kReplicaDigests), mine);
    size_t column = 0;
    for (const auto& [key, digest] : units) {
      if (std::any_of(all.begin(), all.end(), [&](const auto& row) { return row[column] != all[0][column]; }))
        differ[by].insert(key);
      ++column;
    }
  }
  const bool same = std::ranges::all_of(differ, [](const std::set<Key>& keys) { return keys.empty(); });
  const auto verdicts = comm::gather_numbers(groups.world(), program::call_id(program::Purpose::kReplicaVerdict), {same ? 0 : 1});
  if (std::all_of(verdicts.begin(), verdicts.end(), [](const auto& verdict) { return verdict[0] == 0; })) return {};
  std::vector<std::string> told;
  for (size_t by = 0; by < kNumSharings; ++by)
    if (!differ[by].empty()) name_tensors(pieces, differ[by], by, *ranks[by], executor, groups.rank(), told);
  std::vector<std::string> words = shared_words(groups, told);
  LOCKSTEP_CHECK(!words.empty(), "digests of units differ, and those of their tensors do not");
  return words;
}

}  // namespace lockstep::engine
