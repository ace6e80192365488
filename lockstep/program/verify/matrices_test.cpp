// Matrices that are updated whole: who owns them, what stands in the list, and broken lists with the rule that names them.
#include "lockstep/program/matrices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Layout layout_of(int zero, int shard, int tp, int64_t kv_heads = 0) {
  config::ModelSection section{.preset = "llama-test"};
  section.layers = 2;
  if (kv_heads > 0) section.kv_heads = kv_heads;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[zero > 0 ? mesh::Axis::kDpShard : mesh::Axis::kDpReplicate] = shard;
  degrees[mesh::Axis::kTp] = tp;
  Layout layout{.model = arch::resolve_model(section),
                .mesh = mesh::Mesh(degrees),
                .global_batch = 2 * shard,
                .micro_batch = 2,
                .seq_len = 16,
                .bucket_bytes = 0,
                .zero = zero};
  layout.optimizer.kind = config::OptimizerKind::kMuon;
  return layout;
}

// From LOSS on.
std::string update_of(const Layout& layout, int rank = 0) {
  const std::string text = program_text(build_program(layout), layout, rank);
  return text.substr(text.find("LOSS"));
}

TEST(Matrices, AreGatheredOneUnitAheadAndSteppedOneBehind) {
  EXPECT_EQ(update_of(layout_of(1, 2, 1)),
            "LOSS | NORM | GATHER_UPDATE b0 | GATHER_UPDATE b1 | SCATTER_UPDATE b0 | STEP embed | UNSHARD embed | SCATTER_UPDATE b1 | "
            "STEP b0 | UNSHARD b0 | STEP b1 | UNSHARD b1 | STEP head | UNSHARD head");
  EXPECT_THAT(update_of(layout_of(3, 2, 1)),
              EndsWith("NORM | GATHER_UPDATE b0 | GATHER_UPDATE b1 | SCATTER_UPDATE b0 | STEP embed | SCATTER_UPDATE b1 | STEP b0 | "
                       "STEP b1 | STEP head"));
  Layout plain = layout_of(1, 2, 1);
  plain.overlap = false;
  EXPECT_EQ(update_of(plain),
            "LOSS | NORM | STEP embed | UNSHARD embed | GATHER_UPDATE b0 | SCATTER_UPDATE b0 | STEP b0 | UNSHARD b0 | "
            "GATHER_UPDATE b1 | SCATTER_UPDATE b1 | STEP b1 | UNSHARD b1 | STEP head | UNSHARD head");
  for (int rank : {0, 1}) EXPECT_THAT(update_of(layout_of(0, 1, 2), rank), HasSubstr("SCATTER_UPDATE b1 | STEP b0")) << rank;
}

// Where every rank has whole matrices, and where nothing is updated whole, nothing is added.
TEST(Matrices, MoveOnlyWhereTheyLieScattered) {
  EXPECT_EQ(update_of(layout_of(0, 2, 1)), "LOSS | NORM | STEP");
  Layout adamw = layout_of(1, 2, 2);
  adamw.optimizer = {};
  EXPECT_THAT(update_of(adamw), Not(HasSubstr("GATHER_UPDATE")));
}

// Of all pieces that are given every element is there once; every rank has the same plan; one owner for a matrix, and none has more
// than its share and one matrix.
TEST(Matrices, EveryElementHasOneWayToItsOwner) {
  for (const auto& [zero, shard, tp, kv_heads] :
       {std::tuple{1, 2, 1, 0}, {3, 3, 1, 0}, {0, 1, 2, 0}, {0, 1, 4, 2}, {2, 2, 2, 0}, {1, 3, 2, 1}}) {
    const Layout layout = layout_of(zero, shard, tp, kv_heads);
    SCOPED_TRACE(describe(layout));
    const MatrixPlan first(layout, 0);
    std::map<int, double> load;
    double all = 0, largest = 0;
    for (const int unit : {1, 2}) {
      ASSERT_EQ(first.of(unit).size(), 7u);  // q, k, v, out, gate, up, down
      for (const ScatteredMatrix& matrix : first.of(unit)) {
        int64_t given = 0;
        for (const HeldPiece& piece : matrix.pieces) given += piece.copy == 0 ? piece.numel : 0;
        EXPECT_EQ(given, matrix.rows * matrix.columns);
        load[matrix.owner] += matrix.flops(5);
        all += matrix.flops(5);
        largest = std::max(largest, matrix.flops(5));
      }
      for (int rank = 1; rank < layout.mesh.world_size(); ++rank) {
        const MatrixPlan other(layout, rank);
        for (size_t i = 0; i < 7; ++i) EXPECT_EQ(other.of(unit)[i].owner, first.of(unit)[i].owner);
      }
    }
    for (const auto& [owner, flops] : load) EXPECT_LE(flops, all / (shard * tp) + largest) << owner;
  }
}

// Over ranks of dp_shard and tp, one for each replica; where that is a group that there is, it is that one.
TEST(Matrices, TravelInTheirOwnGroup) {
  EXPECT_EQ(group_name(layout_of(1, 2, 1), matrix_group(layout_of(1, 2, 1))), "dp");
  EXPECT_EQ(group_name(layout_of(0, 2, 2), matrix_group(layout_of(0, 2, 2))), "tp");
  Layout layout = layout_of(1, 2, 2);
  EXPECT_EQ(group_name(layout, matrix_group(layout)), "replica");
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kDpReplicate] = degrees[mesh::Axis::kDpShard] = degrees[mesh::Axis::kTp] = 2;
  layout.mesh = mesh::Mesh(degrees);
  EXPECT_EQ(group_name(layout, matrix_group(layout)), "dp_shard_tp");
  EXPECT_EQ(std::ranges::count(groups_of(layout, 0), matrix_group(layout)), 1);
  EXPECT_EQ(group_ranks(layout, 5, matrix_group(layout)), (std::vector<int>{4, 5, 6, 7}));
}

TEST(Matrices, BrokenListsAreNamed) {
  const Layout layout = layout_of(1, 2, 1);
  const auto broken = [&](ActionKind kind, bool to_the_end) {
    Program program = build_program(layout);
    for (int rank : {0, 1}) {
      std::vector<Action>& actions = own_list(program, rank);
      const auto found = std::ranges::find(actions, kind, &Action::kind);
      const Action action = *found;
      actions.erase(found);
      if (to_the_end) actions.push_back(action);
    }
    return join(verify(program, layout, Pass::kOffload), "\n");
  };
  EXPECT_THAT(broken(ActionKind::kGatherUpdate, false), HasSubstr("[life] rank 0: SCATTER_UPDATE b0 without the matrices of b0"));
  EXPECT_THAT(broken(ActionKind::kScatterUpdate, false), HasSubstr("[life] rank 0: STEP b0 finds the matrices of b0 not orthogonalised"));
  EXPECT_THAT(broken(ActionKind::kScatterUpdate, true), HasSubstr("[life] rank 0: STEP b0 finds the matrices of b0 not orthogonalised"));
  EXPECT_THAT(broken(ActionKind::kGatherUpdate, true), HasSubstr("[life] rank 0: SCATTER_UPDATE b0 without the matrices of b0"));
}

// Each list by itself is sound: the ranks would wait for each other's pieces.
TEST(Matrices, MoveInOneOrderOnAllRanksOfAGroup) {
  const Layout layout = layout_of(1, 2, 1);
  Program program = build_program(layout);
  std::vector<Action>& actions = own_list(program, 1);
  const auto first = std::ranges::find(actions, ActionKind::kGatherUpdate, &Action::kind);
  std::swap(first->unit, (first + 1)->unit);
  EXPECT_THAT(verify(program, layout),
              Contains(HasSubstr("[deadlock] ranks 0 and 1 of one dp_shard group do not communicate in the same order: "
                                 "GATHER_UPDATE b0 there, GATHER_UPDATE b1 here")));
}

}  // namespace
}  // namespace lockstep::program
