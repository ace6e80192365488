#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"
#include "lockstep/program/names.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/moves.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::program {
namespace {

std::string left_out(size_t shown, size_t ranks) {
  return shown < ranks ? cat("... ", ranks - shown, " more ranks; --rank R shows any of them\n") : "";
}

constexpr MemoryCategory kCategories[] = {MemoryCategory::kParameters, MemoryCategory::kGradients,
                                          MemoryCategory::kOptimizer, MemoryCategory::kActivations,
                                          MemoryCategory::kBuffers};

}  // namespace

std::string layers_text(const Layout& layout, int rank) {
  std::vector<std::string> texts;
  const std::vector<int> layers = layout.layers_of(rank);
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    const std::string first = layer_label(layers[i], layout.num_layers());
    texts.push_back(end == i + 1 ? first : cat(first, "..", layer_label(layers[end - 1], layout.num_layers())));
    i = end;
  }
  return join(texts, ", ");
}

std::string layout_table(const Program& program, const Layout& layout, const std::vector<int>& ranks, int max_rows) {
  const bool stages = layout.pipeline.ranks > 1;
  const size_t shown = std::min(static_cast<size_t>(max_rows), ranks.size());
  const Domain domain = layout.dense_domain();
  const bool sharded = layout.shards() > 1, replicated = sharded && layout.mesh.degree(domain.copies) > 1;
  std::vector<Row> rows = {{"rank", "coordinates", "layers", "sequences"}};
  if (stages) rows[0].emplace_back("stages");
  if (sharded) rows[0].emplace_back("shard");
  if (replicated) rows[0].emplace_back("same shard on");
  const size_t first_number = rows[0].size();
  for (MemoryCategory category : kCategories) rows[0].emplace_back(category_name(category));
  rows[0].emplace_back("peak");
  RankMemory memory(layout, program);
  for (size_t i = 0; i < shown; ++i) {
    const int rank = ranks[i];
    const SampleRange first = microbatch_samples(layout, rank, 0);
    const SampleRange last = microbatch_samples(layout, rank, layout.num_microbatches() - 1);
    std::string coordinates = layout.mesh.describe(rank);
    if (layout.server_mode() && layout.owns_optimizer(rank))
      coordinates += " (server)";
    Row row = {cat(rank), coordinates, layers_text(layout, rank),
               cat(first.begin, "..", last.end - 1)};
    if (stages) row.push_back(cat(rank_list(layout.pipeline.stages_of(layout.pipeline_rank(rank))), " of ", layout.pipeline.stages()));
    if (sharded)
      row.push_back(cat(layout.shard(rank), " of ", layout.shards(), " on ranks ",
                        rank_list(layout.mesh.group(rank, domain.shard))));
    if (replicated) row.push_back(cat("ranks ", rank_list(layout.mesh.group(rank, domain.copies))));
    const MemoryBytes& bytes = memory.of(rank);
    for (MemoryCategory category : kCategories) row.push_back(bytes_text(bytes[category]));
    row.push_back(bytes_text(bytes.peak));
    rows.push_back(std::move(row));
  }
  return table(rows, first_number, std::size(kCategories) + 1) + left_out(shown, ranks.size());
}

std::string kept_table(const Layout& layout, int rank) {
  constexpr arch::Recompute kChoices[] = {arch::Recompute::kNone, arch::Recompute::kSelective, arch::Recompute::kFull};
  const arch::CostInput input{.batch = layout.micro_batch,
                              .seq_len = layout.seq_len,
                              .element_size = layout.element_size(),
                              .threads = layout.threads,
                              .tensor = layout.tensor_shard(rank)};
  std::vector<Row> rows = {{"a block keeps"}};
  for (const arch::Recompute choice : kChoices) rows[0].push_back(config::name_of(choice));
  int64_t sums[std::size(kChoices)] = {}, blocks[std::size(kChoices)] = {};
  for (const arch::KeptPart& part : arch::block_kept_parts(layout.model, input)) {
    Row& row = rows.emplace_back(Row{"  " + part.name});
    for (size_t i = 0; i < std::size(kChoices); ++i) {
      row.push_back(part.kept_by(kChoices[i]) ? bytes_text(part.bytes) : "again");
      if (part.kept_by(kChoices[i])) sums[i] += part.bytes;
    }
  }
  for (int64_t i = 0; i < layout.model.layers; ++i)
    blocks[static_cast<size_t>(layout.recompute_of(static_cast<int>(i) + 1))] += 1;
  Row sum{"  in all"}, count{"blocks of this layout"};
  for (size_t i = 0; i < std::size(kChoices); ++i) sum.push_back(bytes_text(sums[i])), count.push_back(cat(blocks[i]));
  rows.insert(rows.end(), {sum, count});
  return table(rows, 1, std::size(kChoices));
}

std::string moves_table(const Program& program, const Layout& layout, int rank) {
  const Moves moves = predict_moves(layout, program, rank);
  if (moves.empty()) return "";
  std::vector<Row> rows = {{"what", "way", "moves", "bytes"}};
  for (const auto& [key, totals] : moves)
    rows.push_back({key.first, route_name(key.second), cat(totals.count), decimal_bytes(totals.bytes)});
  const HostPlan plan = host_plan(layout, rank);
  std::string text = cat("between device, host and disk, rank ", rank, "\n", table(rows, 2, 2));
  if (plan.disk > 0)
    text += cat("on disk: the states of ", plan.disk_units.size(), " units, ", decimal_bytes(plan.disk),
                "; on the host ", decimal_bytes(plan.host()), "\n");
  return text;
}

}  // namespace lockstep::program
