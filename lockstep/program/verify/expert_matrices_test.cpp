// Matrices of experts that are updated whole and that no rank has whole: who owns them, in which groups they travel, and lists that are
// sound under every schedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "lockstep/program/matrices.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/predict/traffic.h"
#include "lockstep/program/render/render.h"
#include "lockstep/program/test_experts.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using K = ActionKind;

constexpr ExpertLayout kGrids[] = {{.replicate = 2, .etp = 2},
                                   {.replicate = 2, .tp = 2, .ep = 2, .etp = 2},
                                   {.tp = 2, .etp = 2},
                                   {.shard = 4, .ep = 2, .zero = 1},
                                   {.shard = 4, .ep = 1, .etp = 2, .zero = 2},
                                   {.replicate = 2, .shard = 4, .ep = 2, .zero = 3},
                                   {.replicate = 2, .shard = 4, .ep = 1, .etp = 2, .zero = 3},
                                   {.shard = 2, .tp = 2, .ep = 1, .etp = 2, .zero = 3},
                                   {.tp = 4, .ep = 2, .zero = 1},
                                   {.shard = 2, .tp = 2, .ep = 1, .etp = 4, .zero = 1},
                                   {.replicate = 3, .tp = 2, .ep = 3, .zero = 1}};

Layout muon_of(const ExpertLayout& of) {
  Layout layout = layout_of(of);
  layout.optimizer.kind = config::OptimizerKind::kMuon;
  if (of.ep == 3) layout.model.experts.count = 9;
  return layout;
}

int unit_of_experts(const Layout& layout, int block) { return block + 1 + 2 * layout.num_layers(); }

// Of all pieces that are given every element is there once; every rank of a group has the same plan, and none has more than its share
// and one matrix.
TEST(ExpertMatrices, EveryElementHasOneWayToItsOwner) {
  for (const ExpertLayout& of : kGrids) {
    SCOPED_TRACE(text_of(of));
    const Layout layout = muon_of(of);
    const GroupRef group = matrix_group(layout, arch::ParameterGroup::kExperts);
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const MatrixPlan plan(layout, rank);
      const std::vector<int> ranks = group_ranks(layout, rank, group);
      const MatrixPlan first(layout, ranks.front());
      const std::vector<arch::ParamSpec> table = layout.param_table(rank);
      std::map<int, double> load;
      double all = 0, largest = 0;
      for (int64_t block = 0; block < layout.model.layers; ++block) {
        const int unit = unit_of_experts(layout, static_cast<int>(block));
        const std::vector<ScatteredMatrix>& matrices = plan.of(unit);
        ASSERT_EQ(std::ssize(matrices), 3 * layout.model.experts.count / of.ep);
        EXPECT_EQ(plan.group(unit), group);
        EXPECT_EQ(ranks.at(static_cast<size_t>(plan.member(unit))), rank);
        for (size_t i = 0; i < matrices.size(); ++i) {
          int64_t given = 0;
          for (const HeldPiece& piece : matrices[i].pieces) given += piece.copy == 0 ? piece.numel : 0;
          EXPECT_EQ(given, matrices[i].rows * matrices[i].columns);
          EXPECT_EQ(matrices[i].owner, first.of(unit)[i].owner);
          EXPECT_EQ(table[static_cast<size_t>(matrices[i].param)].unit, unit);
          load[matrices[i].owner] += matrices[i].flops(5);
          all += matrices[i].flops(5);
          largest = std::max(largest, matrices[i].flops(5));
        }
      }
      EXPECT_EQ(load.size(), ranks.size()) << "all of them own some";
      for (const auto& [owner, flops] : load) EXPECT_LE(flops, all / static_cast<double>(ranks.size()) + largest) << owner;
    }
  }
}

// What a rank has of a matrix is what its shard has.
TEST(ExpertMatrices, PiecesAreThoseOfTheShards) {
  for (const ExpertLayout& of : kGrids) {
    SCOPED_TRACE(text_of(of));
    const Layout layout = muon_of(of);
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const MatrixPlan plan(layout, rank);
      for (const arch::FlatUnit& unit : layout.flat_layout(rank).units) {
        std::set<std::tuple<int, int64_t, int64_t>> planned, held;
        for (const ScatteredMatrix& matrix : plan.of(unit.id)) {
          for (const HeldPiece& piece : matrix.pieces)
            if (piece.holder == plan.member(unit.id)) planned.emplace(matrix.param, piece.begin, piece.numel);
          for (const arch::ShardSlot& slot : arch::shard_slots(unit, layout.shard(rank, unit.group)))
            if (slot.param == matrix.param) held.emplace(slot.param, slot.begin, slot.numel);
        }
        EXPECT_EQ(planned, held) << "rank " << rank << " unit " << unit.id;
      }
    }
  }
}

// Over edp_shard and etp: one for each copy of the experts. Dense matrices have their own, rows with a matrix theirs.
TEST(ExpertMatrices, TravelInTheirOwnGroup) {
  const auto name = [](const ExpertLayout& of) {
    const Layout layout = muon_of(of);
    return group_name(layout, matrix_group(layout, arch::ParameterGroup::kExperts));
  };
  EXPECT_EQ(name({.replicate = 2, .etp = 2}), "etp");
  EXPECT_EQ(name({.shard = 4, .ep = 2, .zero = 1}), "edp");
  EXPECT_EQ(name({.shard = 4, .etp = 2, .zero = 1}), "edp_etp");
  EXPECT_EQ(name({.replicate = 2, .shard = 4, .etp = 2, .zero = 1}), "edp_shard_etp");
  EXPECT_EQ(name({.tp = 2, .etp = 2}), "tp") << "where experts lie as all else does";
  Layout layout = muon_of({.replicate = 2, .shard = 2, .tp = 2, .ep = 2, .zero = 1});
  EXPECT_EQ(group_ranks(layout, 5, matrix_group(layout, arch::ParameterGroup::kExperts)), (std::vector<int>{5, 7}));
  EXPECT_EQ(matrix_groups(layout, 5).size(), 2U);
  layout.row_groups = true;
  layout.optimizer.rules.list.push_back({.of = config::ParameterClass::kRouter, .optimizer = config::OptimizerKind::kMuon});
  EXPECT_EQ(matrix_groups(layout, 5).size(), 3U);
  for (const GroupRef& group : matrix_groups(layout, 5)) EXPECT_EQ(std::ranges::count(groups_of(layout, 5), group), 1);
}

TEST(ExpertMatrices, AreSoundUnderEverySchedule) {
  for (const auto& [kind, pp, virtual_stages] :
       {std::tuple{ScheduleKind::kOneFOneB, 1, 1}, {ScheduleKind::kOneFOneB, 2, 1}, {ScheduleKind::kZbV, 2, 2}})
    for (ExpertLayout of : kGrids) {
      of.pp = pp, of.schedule = kind, of.virtual_stages = virtual_stages, of.microbatches = 4;
      SCOPED_TRACE(text_of(of));
      Layout layout = muon_of(of);
      for (const bool offload : {false, true}) {
        if (offload && pp > 1) continue;
        layout.offload.optimizer = offload;
        const Program program = make_program(layout);
        ASSERT_THAT(verify(program, layout), IsEmpty());
        for (const int rank : {0, layout.mesh.world_size() - 1}) {
          EXPECT_GT(predict_memory(layout, program, rank).peak, 0);
          EXPECT_THAT(program_text(program, layout, rank), HasSubstr("GATHER_UPDATE"));
        }
      }
    }
}

// The dense matrices first, then those of experts; nothing moves of what a rank has whole.
TEST(ExpertMatrices, MoveUnitByUnit) {
  const auto moved = [](const Layout& layout) {
    const Program program = make_program(layout);
    std::vector<int> units;
    for (const Action& action : program.list(0))
      if (action.kind == K::kScatterUpdate) units.push_back(action.unit);
    return units;
  };
  const Layout cut = muon_of({.replicate = 2, .etp = 2}), whole = muon_of({.shard = 2, .ep = 2, .zero = 1});
  std::vector<int> experts, dense;
  for (int block = 0; block < 4; ++block) experts.push_back(unit_of_experts(cut, block)), dense.push_back(block + 1);
  EXPECT_EQ(moved(cut), experts);
  EXPECT_EQ(moved(whole), dense);
  dense.insert(dense.end(), experts.begin(), experts.end());
  EXPECT_EQ(moved(muon_of({.shard = 4, .ep = 2, .zero = 1})), dense);
}

// What is sent is what comes, to the owners and back.
TEST(ExpertMatrices, LedgerOfTheirMoves) {
  for (const ExpertLayout& of : kGrids) {
    SCOPED_TRACE(text_of(of));
    const Layout layout = muon_of(of);
    const Program program = make_program(layout);
    const std::string axis = group_name(layout, matrix_group(layout, arch::ParameterGroup::kExperts));
    std::map<Purpose, int64_t> sent, received;
    for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
      const Ledger ledger = predict_ledger(layout, program, rank);
      for (const auto& [key, entry] : ledger.entries())
        if (key.axis == axis && (key.collective == Collective::kSend || key.collective == Collective::kRecv))
          (key.collective == Collective::kSend ? sent : received)[key.id.purpose] += entry.payload;
    }
    EXPECT_EQ(sent, received);
    EXPECT_GT(sent[Purpose::kGatherUpdate], 0);
    EXPECT_EQ(sent[Purpose::kGatherUpdate], sent[Purpose::kScatterUpdate]) << "no two ranks hold the same elements";
  }
}

TEST(ExpertMatrices, BrokenListsAreNamed) {
  const Layout layout = muon_of({.replicate = 3, .tp = 2, .ep = 3, .zero = 1});  // dense matrices over tp, those of experts over dp and tp
  const Program good = make_program(layout);
  ASSERT_THAT(verify(good, layout), IsEmpty());
  Program late = good;
  for (int rank = 0; rank < late.world_size(); ++rank) {
    std::vector<Action>& actions = own_list(late, rank);
    actions.erase(std::ranges::find_if(actions, [&](const Action& action) {
      return action.kind == K::kScatterUpdate && layout.group_of(action.unit) == arch::ParameterGroup::kExperts;
    }));
  }
  EXPECT_THAT(verify(late, layout), Contains(HasSubstr("not orthogonalised")));
  Program swapped = good;
  std::vector<Action>& actions = own_list(swapped, 1);
  const auto experts = [&](const Action& action) {
    return action.kind == K::kGatherUpdate && layout.group_of(action.unit) == arch::ParameterGroup::kExperts;
  };
  const auto first = std::ranges::find_if(actions, experts), second = std::find_if(first + 1, actions.end(), experts);
  std::swap(first->unit, second->unit);
  EXPECT_THAT(verify(swapped, layout), Not(IsEmpty()));
}

}  // namespace
}  // namespace lockstep::program
