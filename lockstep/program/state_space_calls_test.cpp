// The calls of a state space over tp and cp, folded from its description, by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "lockstep/program/planned_calls.h"

namespace lockstep::program {
namespace {

using mesh::Axis;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A block on 3 sequences of 32 tokens. H 12 heads of P 8 with N 16 numbers each, W 4 columns.
constexpr int64_t kBatch = 3, kLength = 32, kHeads = 12, kInner = 96, kState = 16, kColumns = 3;

struct Case {
  int tp = 1, cp = 1;
  int64_t groups = 1;
  config::ContextSplit split = config::ContextSplit::kZigzag;
  config::Precision precision = config::Precision::kFp32;
  arch::Recompute recompute = arch::Recompute::kNone;
};

Layout layout_of(const Case& c) {
  config::ModelSection section;
  section.preset = "mamba2-test";
  section.layers = 1;
  section.state_groups = c.groups;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[Axis::kTp] = c.tp;
  degrees[Axis::kCp] = c.cp;
  Layout layout{.model = arch::resolve_model(section), .mesh = mesh::Mesh(degrees)};
  layout.global_batch = layout.micro_batch = kBatch;
  layout.seq_len = kLength;
  layout.context_split = c.split;
  layout.precision = c.precision;
  layout.recompute = {c.recompute};
  return layout;
}

using Row = std::tuple<std::string, Collective, int64_t, int64_t>;

// Of the block, those whose name begins with one of `parts`.
std::vector<Row> calls_of(const Case& c, ActionKind kind, const std::vector<std::string>& parts) {
  std::vector<Row> rows;
  for (const PlannedCall& call : tensor_calls(layout_of(c), {.kind = kind, .layer = 1, .microbatch = 0}))
    for (const std::string& part : parts)
      if (const std::string name = call_text(call.id); name.starts_with("blocks.0.ssm." + part))
        rows.emplace_back(name.substr(name.find("ssm.")), call.collective, call.numel, call.element_size);
  return rows;
}

const std::vector<std::string> kPieces = {"columns", "states"};

// The last columns of each piece and the state behind it, with the decay through it; back the gradients of both, all in fp32.
TEST(StateSpaceCalls, OfPieces) {
  const int64_t convolved = kInner + 2 * kState;
  for (const int cp : {2, 4})
    for (const config::ContextSplit split : {config::ContextSplit::kZigzag, config::ContextSplit::kContiguous}) {
      const Case c{.cp = cp, .split = split};
      const int64_t sequences = kBatch * cp * (split == config::ContextSplit::kZigzag ? 2 : 1);  // pieces of all
      const int64_t columns = sequences * kColumns * convolved, states = sequences * kHeads * (kInner / kHeads) * kState;
      EXPECT_THAT(calls_of(c, ActionKind::kForward, kPieces),
                  ElementsAre(Row("ssm.columns forward", Collective::kAllGather, columns, 4),
                              Row("ssm.states forward", Collective::kAllGather, states + sequences * kHeads, 4)));
      EXPECT_THAT(calls_of(c, ActionKind::kBackwardInput, kPieces),
                  ElementsAre(Row("ssm.states backward", Collective::kAllGather, states, 4), Row("ssm.columns backward", Collective::kAllGather, columns, 4)));
      EXPECT_THAT(calls_of(c, ActionKind::kBackwardWeight, kPieces), IsEmpty());
    }
}

TEST(StateSpaceCalls, OfPiecesInBf16) {
  const Case c{.cp = 2, .precision = config::Precision::kBf16};
  EXPECT_THAT(calls_of(c, ActionKind::kForward, {"columns"}), ElementsAre(Row("ssm.columns forward", Collective::kAllGather, 12 * 3 * 128, 2)));
  EXPECT_THAT(calls_of(c, ActionKind::kBackwardInput, {"columns"}), ElementsAre(Row("ssm.columns backward", Collective::kAllGather, 12 * 3 * 128, 4)));
}

// The heads of a rank of tp alone, with the groups that it makes: half of two, all of one.
TEST(StateSpaceCalls, OfPiecesBesideTp) {
  for (const int64_t groups : {1, 2}) {
    const int64_t convolved = kInner / 2 + 2 * kState;
    EXPECT_THAT(calls_of({.tp = 2, .cp = 2, .groups = groups}, ActionKind::kForward, kPieces),
                ElementsAre(Row("ssm.columns forward", Collective::kAllGather, 12 * kColumns * convolved, 4),
                            Row("ssm.states forward", Collective::kAllGather, 12 * kHeads / 2 * (8 * kState + 1), 4)));
  }
}

// A norm over columns that tp cuts: a number of each row, of all rows of the microbatch.
TEST(StateSpaceCalls, OfTheNorm) {
  for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackwardInput}) {
    const std::string name = kind == ActionKind::kForward ? "ssm.norm forward" : "ssm.norm backward";
    EXPECT_THAT(calls_of({.tp = 2}, kind, {"norm"}), ElementsAre(Row(name, Collective::kAllReduce, kBatch * kLength, 4)));
    EXPECT_THAT(calls_of({.tp = 2, .cp = 2}, kind, {"norm"}), ElementsAre(Row(name, Collective::kAllReduce, kBatch * kLength / 2, 4)));
    EXPECT_THAT(calls_of({}, kind, {"norm", "columns", "states"}), IsEmpty());
  }
}

// Full recomputation makes forward's calls again but for the output's; selective none.
TEST(StateSpaceCalls, OfRecomputation) {
  const Case full{.tp = 2, .cp = 2, .recompute = arch::Recompute::kFull}, selective{.tp = 2, .cp = 2, .recompute = arch::Recompute::kSelective};
  const std::vector<std::string> all = {"in", "columns", "states", "norm"};
  EXPECT_EQ(calls_of(full, ActionKind::kRecompute, all), calls_of(full, ActionKind::kForward, all));
  EXPECT_THAT(calls_of(selective, ActionKind::kRecompute, kPieces), IsEmpty());
}

}  // namespace
}  // namespace lockstep::program
