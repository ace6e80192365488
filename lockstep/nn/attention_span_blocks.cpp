#include "lockstep/nn/attention_span_blocks.h"

namespace lockstep::nn::blocks {
namespace {

// One sequence's.
SpanTable table_of(const int32_t* first, const int32_t* last, int64_t queries, int64_t keys) {
  const int64_t rows = round_up(queries, kBlock);
  SpanTable table{.first = std::vector<int32_t>(static_cast<size_t>(rows)),
                  .last = std::vector<int32_t>(static_cast<size_t>(rows)),
                  .seen = std::vector<uint8_t>(static_cast<size_t>(round_up(keys, kBlock) / kBlock), 0)};
  int64_t marked = 0;  // blocks before it are done
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t query = std::min(i, queries - 1), from = first[query], to = last[query];
    table.first[static_cast<size_t>(i)] = first[query];
    table.last[static_cast<size_t>(i)] = last[query];
    if (from >= to) continue;
    const int64_t end = round_up(to, kBlock) / kBlock;
    for (marked = std::max(marked, from / kBlock); marked < end; ++marked) table.seen[static_cast<size_t>(marked)] = 1;
  }
  return table;
}

}  // namespace

std::vector<SpanTable> tables_of(const AttentionRectangle& r) {
  check_rectangle(r);
  const int64_t queries = r.q.size(2);
  std::vector<SpanTable> tables;
  for (int64_t b = 0; b < r.q.size(0); ++b)
    tables.push_back(table_of(r.spans.first.const_data_ptr<int32_t>() + b * queries, r.spans.last.const_data_ptr<int32_t>() + b * queries,
                              queries, r.k.size(2)));
  return tables;
}

SpanShapes shapes_of(const AttentionRectangle& r) {
  const HeadShape queries = shape_of({.q = r.q, .k = r.k, .v = r.v, .scale = r.scale});
  HeadShape keys = queries;
  keys.seq = r.k.size(2);
  return {.queries = queries, .keys = keys, .values = value_rows(keys), .outs = value_rows(queries)};
}

}  // namespace lockstep::nn::blocks
