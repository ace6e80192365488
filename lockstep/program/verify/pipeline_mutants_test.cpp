// Programs of pipelines: all are sound, and of broken ones the rule of the verifier that must name each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <stdexcept>

#include "lockstep/base/text.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
using K = ActionKind;
using Kind = ScheduleKind;
using Actions = std::vector<Action>;

struct Shape {
  Kind kind = Kind::kOneFOneB;
  int pp = 2;
  int virtual_stages = 1;
  int microbatches = 4;
  int dp = 1;
  int shard = 1;
  int tp = 1;
  int zero = 0;
  bool tied = false;
  bool overlap = true;
};

// A block for every stage, and embedding and head.
Layout layout_of(const Shape& shape) {
  const int stages = shape.pp * shape.virtual_stages;
  config::ModelSection section{.preset = shape.tied ? "gpt2-test" : "llama-test"};
  section.layers = stages;
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  degrees[mesh::Axis::kPp] = shape.pp;
  degrees[mesh::Axis::kDpReplicate] = shape.dp;
  degrees[mesh::Axis::kDpShard] = shape.shard;
  degrees[mesh::Axis::kTp] = shape.tp;
  return {.model = arch::resolve_model(section),
          .mesh = mesh::Mesh(degrees),
          .pipeline = {.kind = shape.kind,
                       .ranks = shape.pp,
                       .virtual_stages = shape.virtual_stages,
                       .first_layer = stages_of_blocks(std::vector<int>(static_cast<size_t>(stages), 1))},
          .global_batch = int64_t{2} * shape.dp * shape.shard * shape.microbatches,
          .micro_batch = 2,
          .seq_len = 16,
          .bucket_bytes = 0,
          .zero = shape.zero,
          .overlap = shape.overlap};
}
std::string text_of(const Shape& s) {
  return cat(schedule_name(s.kind), ", pp ", s.pp, " x ", s.virtual_stages, ", ", s.microbatches, " microbatches, dp ",
             s.dp, " x ", s.shard, ", tp ", s.tp, ", zero ", s.zero, s.tied ? ", tied" : "",
             s.overlap ? "" : ", no overlap");
}

Shape random_shape(std::mt19937& random) {
  const auto of = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  Shape shape{.kind = static_cast<Kind>(of(0, 7)), .pp = of(2, 5), .microbatches = of(1, 9)};
  if (v_shaped(shape.kind)) shape.virtual_stages = 2;
  if (shape.kind == Kind::kInterleaved) {
    shape.virtual_stages = of(1, 3);
    shape.microbatches = shape.pp * of(1, 3);
  }
  shape.dp = of(1, 2);
  shape.shard = of(1, 2);
  shape.tp = of(1, 2);
  shape.zero = shape.shard > 1 ? of(0, 3) : 0;
  shape.tied = of(0, 1) == 1;
  shape.overlap = of(0, 3) > 0;
  return shape;
}

TEST(PipelineProgramTest, EveryLayoutIsSound) {
  std::mt19937 random(11);
  for (int i = 0; i < 250; ++i) {
    const Shape shape = random_shape(random);
    const Layout layout = layout_of(shape);
    ASSERT_NO_THROW(ASSERT_THAT(verify(build_program(layout), layout), IsEmpty())) << text_of(shape);
  }
}

Actions& rank(Program& program, int r) { return own_list(program, r); }
// By kind, layer or stage, and microbatch.
size_t find(const Actions& actions, K kind, int place, int microbatch) {
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const bool here = action.layer == place || (action.layer < 0 && action.stage == place);
    if (action.kind == kind && here && action.microbatch == microbatch) return i;
  }
  throw std::runtime_error(cat("no ", action_name(kind), " of ", place, " m", microbatch));
}
void erase(Actions& actions, size_t i) { actions.erase(actions.begin() + static_cast<int64_t>(i)); }
void insert(Actions& actions, size_t i, Action action) { actions.insert(actions.begin() + static_cast<int64_t>(i), action); }
void twice(Actions& actions, size_t i) { insert(actions, i, actions[i]); }
// To where `to` stands, in front of it.
void move(Actions& actions, size_t from, size_t to) {
  const Action action = actions[from];
  erase(actions, from);
  insert(actions, to > from ? to - 1 : to, action);
}

struct Mutant {
  const char* rule;
  const char* what;
  Shape shape;
  std::function<void(Program&)> breaks;
};

// Stage 0 is layers 0 (embedding) and 1, stage 1 layers 2 and 3 (head).
const Shape kTwo{};
const Shape kSplit{.kind = Kind::kZbH1};
const Shape kLoop{.kind = Kind::kInterleaved, .virtual_stages = 2};  // layers 0 1 | 2 | 3 | 4 5
const Shape kV{.kind = Kind::kZbV, .virtual_stages = 2};
const Shape kThree{.pp = 3};

const Mutant kMutants[] = {
    {"ranks", "a stage that does not exist", kTwo,
     [](Program& p) { rank(p, 0)[find(rank(p, 0), K::kSendForward, 0, 1)].stage = 2; }},
    {"ranks", "a transfer of a microbatch that does not exist", kTwo,
     [](Program& p) { rank(p, 1)[find(rank(p, 1), K::kRecvForward, 1, 1)].microbatch = 4; }},
    {"once", "F forgotten", kTwo, [](Program& p) { erase(rank(p, 0), find(rank(p, 0), K::kForward, 1, 2)); }},
    {"once", "F twice", kTwo, [](Program& p) { twice(rank(p, 1), find(rank(p, 1), K::kForward, 3, 2)); }},
    {"once", "backward forgotten", kLoop, [](Program& p) { erase(rank(p, 0), find(rank(p, 0), K::kBackward, 3, 1)); }},
    {"once", "I twice", kSplit, [](Program& p) { twice(rank(p, 1), find(rank(p, 1), K::kBackwardInput, 2, 0)); }},
    {"once", "F of a layer of the other rank", kTwo,
     [](Program& p) { insert(rank(p, 1), 1, {.kind = K::kForward, .layer = 1, .microbatch = 0}); }},
    {"once", "a stage on the wrong rank", kV,
     [](Program& p) {
       const size_t i = find(rank(p, 0), K::kForward, 4, 1);
       const Action action = rank(p, 0)[i];
       erase(rank(p, 0), i);
       insert(rank(p, 1), find(rank(p, 1), K::kForward, 3, 1) + 1, action);
     }},
    {"free", "W forgotten", kSplit, [](Program& p) { erase(rank(p, 0), find(rank(p, 0), K::kBackwardWeight, 1, 3)); }},
    {"free", "W twice", kV, [](Program& p) { twice(rank(p, 1), find(rank(p, 1), K::kBackwardWeight, 2, 1)); }},
    {"free", "W beside B", kTwo,
     [](Program& p) {
       insert(rank(p, 0), find(rank(p, 0), K::kBackward, 1, 2) + 1, {.kind = K::kBackwardWeight, .layer = 1, .microbatch = 2});
     }},
    {"order", "F against the order of layers", kTwo,
     [](Program& p) { move(rank(p, 1), find(rank(p, 1), K::kForward, 3, 1), find(rank(p, 1), K::kForward, 2, 1)); }},
    {"order", "B against the order of layers", kTwo,
     [](Program& p) { move(rank(p, 1), find(rank(p, 1), K::kBackward, 2, 1), find(rank(p, 1), K::kBackward, 3, 1)); }},
    {"order", "the way back before the way there", kV,
     [](Program& p) { move(rank(p, 1), find(rank(p, 1), K::kForward, 3, 0), find(rank(p, 1), K::kForward, 2, 0)); }},
    {"order", "B before F", kTwo,
     [](Program& p) { move(rank(p, 1), find(rank(p, 1), K::kBackward, 3, 1), find(rank(p, 1), K::kForward, 2, 1)); }},
    {"order", "W before I", kSplit,
     [](Program& p) {
       move(rank(p, 0), find(rank(p, 0), K::kBackwardWeight, 1, 0), find(rank(p, 0), K::kBackwardInput, 1, 0));
     }},
    {"order", "W of microbatches in another order", kSplit,
     [](Program& p) {
       Actions& a = rank(p, 1);
       std::swap(a[find(a, K::kBackwardWeight, 2, 1)].microbatch, a[find(a, K::kBackwardWeight, 2, 2)].microbatch);
     }},
    {"life", "received after its use", kTwo,
     [](Program& p) { move(rank(p, 1), find(rank(p, 1), K::kRecvForward, 1, 2), find(rank(p, 1), K::kForward, 3, 2)); }},
    {"life", "gradients received after their use", kTwo,
     [](Program& p) { move(rank(p, 0), find(rank(p, 0), K::kRecvBackward, 0, 2), find(rank(p, 0), K::kBackward, 0, 2)); }},
    {"life", "sent before it is computed", kTwo,
     [](Program& p) { move(rank(p, 0), find(rank(p, 0), K::kSendForward, 0, 2), find(rank(p, 0), K::kForward, 1, 2)); }},
    {"life", "gradients sent before they are computed", kSplit,
     [](Program& p) {
       move(rank(p, 1), find(rank(p, 1), K::kSendBackward, 1, 2), find(rank(p, 1), K::kBackwardInput, 2, 2));
     }},
    {"life", "sent after LOSS", kTwo,
     [](Program& p) { move(rank(p, 1), find(rank(p, 1), K::kSendBackward, 1, 3), rank(p, 1).size()); }},
    {"match", "not sent", kTwo, [](Program& p) { erase(rank(p, 0), find(rank(p, 0), K::kSendForward, 0, 1)); }},
    {"match", "not received", kLoop, [](Program& p) { erase(rank(p, 0), find(rank(p, 0), K::kRecvBackward, 0, 1)); }},
    {"match", "sent twice", kSplit, [](Program& p) { twice(rank(p, 1), find(rank(p, 1), K::kSendBackward, 1, 1)); }},
    {"match", "received twice", kV, [](Program& p) { twice(rank(p, 0), find(rank(p, 0), K::kRecvForward, 3, 1)); }},
    {"match", "sent from the last stage", kTwo,
     [](Program& p) {
       insert(rank(p, 1), find(rank(p, 1), K::kForward, 3, 0) + 1, {.kind = K::kSendForward, .stage = 1, .microbatch = 0});
     }},
    {"match", "sent to itself at the turn of the V", kV,
     [](Program& p) {
       insert(rank(p, 1), find(rank(p, 1), K::kForward, 2, 0) + 1, {.kind = K::kSendForward, .stage = 1, .microbatch = 0});
     }},
    {"match", "a transfer of a stage of the other rank", kTwo,
     [](Program& p) {
       insert(rank(p, 0), find(rank(p, 0), K::kForward, 1, 0) + 1, {.kind = K::kSendForward, .stage = 1, .microbatch = 0});
     }},
    {"match", "received in another order", kTwo,
     [](Program& p) { move(rank(p, 1), find(rank(p, 1), K::kRecvForward, 1, 1), find(rank(p, 1), K::kRecvForward, 1, 0)); }},
    {"match", "sent in another order", kTwo,
     [](Program& p) { move(rank(p, 0), find(rank(p, 0), K::kSendForward, 0, 0), find(rank(p, 0), K::kSendForward, 0, 1) + 1); }},
    {"match", "gradients received in another order", kSplit,
     [](Program& p) { move(rank(p, 0), find(rank(p, 0), K::kRecvBackward, 0, 2), find(rank(p, 0), K::kRecvBackward, 0, 1)); }},
    {"match", "gradients of two stages sent in another order", kLoop,
     [](Program& p) {
       Actions& a = rank(p, 1);
       const size_t first = find(a, K::kSendBackward, 3, 1), then = find(a, K::kSendBackward, 1, 0);
       move(a, first, then + 1);
     }},
};

TEST(PipelineMutantsTest, TheVerifierNamesWhatIsWrongWithEach) {
  for (const Mutant& mutant : kMutants) {
    const Layout layout = layout_of(mutant.shape);
    Program program = build_program(layout);
    mutant.breaks(program);
    EXPECT_THAT(join(verify(program, layout), "\n"), HasSubstr(cat("[", mutant.rule, "]"))) << mutant.what;
  }
}

// Orders of stages that stop, with the transfers that belong to them: only running the lists against each other shows it.
TEST(PipelineMutantsTest, ACircleOfWaitingIsShown) {
  const Layout layout = layout_of(kThree);
  Program program = schedule(layout);
  // Rank 1 runs every F before B of m0; rank 0 runs B of m0 before F of m3.
  Actions& middle = own_list(program, 1);
  for (const int m : {2, 3}) move(middle, find(middle, K::kForward, 1, m), find(middle, K::kBackward, 1, 0));
  const auto found = [&](Pass after) { return verify(program, layout, after); };
  const std::vector<std::string> early = found(Pass::kSchedule);
  ASSERT_EQ(early.size(), 1u);
  EXPECT_THAT(early[0], HasSubstr("[deadlock] rank 0: B stage 0 m0 waits for B stage 1 m0 of rank 1, behind F stage 1 m3"));
  EXPECT_THAT(early[0], HasSubstr("rank 1: F stage 1 m3 waits for F stage 0 m3 of rank 0, behind B stage 0 m0"));
  program = transfer_activations(expand_layers(std::move(program), layout), layout);
  const std::vector<std::string> late = found(Pass::kTransferActivations);
  ASSERT_EQ(late.size(), 1u) << join(late, "\n");
  EXPECT_THAT(late[0], HasSubstr("[deadlock] rank 0: B b0 m0 waits for SEND_B stage 1 m0 of rank 1, behind F b1 m3"));
}

// A rank that gets ahead of its neighbour by more than a channel holds, in both directions at once.
TEST(PipelineMutantsTest, ACircleOfSendsIsShown) {
  Layout layout = layout_of({.microbatches = 8});
  Program program = schedule(layout);
  layout.pipeline.kind = Kind::kGPipe;
  own_list(program, 0) = schedule(layout).list(0);
  EXPECT_THAT(verify(program, layout, Pass::kSchedule), IsEmpty());
  program = transfer_activations(expand_layers(std::move(program), layout), layout);
  const std::string text = join(verify(program, layout, Pass::kTransferActivations), "\n");
  EXPECT_THAT(text, StartsWith("[deadlock] rank 0: SEND_F stage 0 m"));
  EXPECT_THAT(text, HasSubstr("rank 1: SEND_B stage 1 m1 waits for RECV_B stage 0 m0 of rank 0, behind SEND_F stage 0 m"));
}

// Every action of a good program is there for a reason, in every schedule.
TEST(PipelineMutantsTest, NoActionIsTooManyOrTooFew) {
  for (const Kind kind : {Kind::kNaive, Kind::kGPipe, Kind::kOneFOneB, Kind::kInterleaved, Kind::kZbH1, Kind::kZbH2, Kind::kZbV,
                          Kind::kDualPipeV}) {
    const int each = v_shaped(kind) || kind == Kind::kInterleaved ? 2 : 1;
    const Shape shape{.kind = kind, .virtual_stages = each, .dp = 2, .tied = true};
    const Layout layout = layout_of(shape);
    const Program good = build_program(layout);
    for (const int r : {0, 2})
      for (size_t i = 0; i < good.list(r).size(); ++i) {
        Program without = good, with = good;
        erase(own_list(without, r), i);
        twice(own_list(with, r), i);
        EXPECT_THAT(verify(without, layout), Not(IsEmpty())) << text_of(shape) << ": rank " << r << " without action " << i;
        EXPECT_THAT(verify(with, layout), Not(IsEmpty())) << text_of(shape) << ": rank " << r << ", action " << i << " twice";
      }
  }
}

}  // namespace
}  // namespace lockstep::program
