// Sequences that the ranks of cp hold in parts, and documents within them.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/fields.h"

namespace lockstep::config {
namespace {

// Equal pieces that a sequence is cut into.
int64_t pieces_of(const ParallelSection& parallel) {
  return parallel.context_split == ContextSplit::kZigzag ? 2 * int64_t{parallel.cp} : parallel.cp;
}

std::string pieces_text(const ParallelSection& parallel) {
  return parallel.context_split == ContextSplit::kZigzag ? cat("2 cp(", parallel.cp, ")") : cat("cp(", parallel.cp, ")");
}

std::vector<Suggestion> other_kinds(const ParallelSection& parallel) {
  std::vector<Suggestion> ways;
  for (const ContextKind kind : {ContextKind::kRing, ContextKind::kAllGather})
    ways.push_back({.changes = {{"parallel.context", name_of(kind)}, {.key = "parallel.context_inner"}},
                    .text = cat("use context ", name_of(kind), parallel.context_inner > 1 ? " without context_inner" : "")});
  return ways;
}

// Divisors of cp but 1 and itself, the nearest first.
std::vector<Suggestion> inner_that_fits(const ParallelSection& parallel) {
  std::vector<Suggestion> ways;
  for (const Suggestion& way : divisors_near("parallel.context_inner", parallel.cp, std::max(2, parallel.context_inner)))
    if (way.changes[0].value != "1" && way.changes[0].value != cat(parallel.cp)) ways.push_back(way);
  return ways;
}

void inner_problems(const ParallelSection& parallel, const Expect& expect) {
  const int cp = parallel.cp, inner = parallel.context_inner;
  if (parallel.context != ContextKind::k2d) {
    expect(inner == 1, "parallel.context_inner",
           cat("context_inner(", inner, ") beside context = \"", name_of(parallel.context), "\", which has no groups inside cp"),
           std::vector{left_out("parallel.context_inner")} + values_of("parallel.context", {"2d"}));
    return;
  }
  expect(inner > 1 && inner < cp && cp % inner == 0, "parallel.context_inner",
         cat("context = \"2d\" needs several groups of several ranks, but cp(", cp, ") and context_inner(", inner, ")",
             inner > 1 && inner < cp ? cat(": cp % context_inner = ", cp % inner) : ""),
         inner_that_fits(parallel) + other_kinds(parallel));
}

// Each rank that exchanges heads for tokens gets some.
void head_problems(const RunConfig& config, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  const int64_t heads = config.model.heads.value_or(0), tp = parallel.tp;
  const bool nested = parallel.context == ContextKind::k2d;
  if ((parallel.context != ContextKind::kAllToAll && !nested) || heads < 1 || heads % tp != 0) return;
  const int64_t ranks = nested ? parallel.context_inner : parallel.cp, here = heads / tp;
  const char* const key = nested ? "parallel.context_inner" : "parallel.cp";
  expect(ranks <= here, key,
         cat(nested ? "context_inner(" : "cp(", ranks, ") ranks exchange heads for tokens, but there are model.heads(", heads, ")",
             tp == 1 ? "" : cat(" / tp(", tp, ") = ", here)),
         (nested ? inner_that_fits(parallel) : powers_below("parallel.cp", here)) + other_kinds(parallel));
}

void length_problems(const RunConfig& config, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  const int64_t pieces = pieces_of(parallel), length = config.train.seq_len;
  const int64_t of_rank = pieces / parallel.cp;
  const std::vector<Suggestion> fewer = powers_below("parallel.cp", length / of_rank);
  expect(length >= pieces, "train.seq_len",
         cat("seq_len(", length, ") < ", pieces_text(parallel), " = ", pieces, ": a rank would hold no token of any sequence"),
         values_of("train.seq_len", {cat(pieces)}) + fewer);
  const bool experts = config.model.experts.value_or(0) > 0, states = config.model.state_heads.value_or(0) > 0;
  if (length < pieces || (!experts && !states)) return;
  expect(length % pieces == 0, "train.seq_len",
         cat("seq_len(", length, ") % ", pieces_text(parallel), " = ", length % pieces,
             ": what fills sequences up to equal parts is no token, and ", experts ? "experts would be sent it" : "would change the states behind it"),
         multiples_near("train.seq_len", pieces, length) + divisors_near("parallel.cp", length / of_rank, parallel.cp));
}

// Of a model that is known to have no attention.
void no_attention_problems(const RunConfig& config, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  if (config.model.heads.value_or(1) != 0) return;
  expect(parallel.context == ContextKind::kRing, "parallel.context",
         cat("context = \"", name_of(parallel.context), "\" is of attention, which no layer of the model has"),
         {{.changes = {{.key = "parallel.context"}, {.key = "parallel.context_inner"}},
           .text = cat("leave context ", parallel.context_inner > 1 ? "and context_inner " : "", "out")}});
}

void document_problems(const DataSection& data, const Expect& expect) {
  expect(!data.resets_positions() || data.masks_documents(), "data.reset_positions",
         "reset_positions = true, but document_mask = false: a token would see others of its own position in the documents before it",
         std::vector{left_out("data.reset_positions")} + values_of("data.document_mask", {"true"}));
}

}  // namespace

void context_problems(const RunConfig& config, const Expect& expect) {
  document_problems(config.data, expect);
  if (config.parallel.cp == 1) return;
  inner_problems(config.parallel, expect);
  head_problems(config, expect);
  no_attention_problems(config, expect);
  length_problems(config, expect);
}

}  // namespace lockstep::config
