// Schedules from files, and what is said of combinations that cannot be.
#include "lockstep/program/passes/schedule_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/passes/schedules.h"
#include "lockstep/program/predict/memory.h"
#include "lockstep/program/test_program.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::program {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = ScheduleKind;

// What torch.distributed.pipelining 2.x makes of two ranks with two stages each and 4 microbatches.
const char* const kInterleaved =
    "0F0,0F1,2F0,2F1,,,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,,2B2,,2B3,,0B2,,0B3\r\n"
    ",1F0,1F1,,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,,1B2,,1B3\r\n";
const char* const kDualPipeV =
    "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3\n"
    "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3\n";

ScheduleInput grid(const std::string& text, int ranks, int virtual_stages, int microbatches) {
  return {.kind = Kind::kFile,
          .ranks = ranks,
          .virtual_stages = virtual_stages,
          .microbatches = microbatches,
          .grid = text,
          .sequences = 8};
}
std::vector<std::string> said(const ScheduleInput& input) {
  std::vector<std::string> lines;
  for (const config::LayoutProblem& problem : schedule_problems(input))
    lines.push_back(cat(problem.key, ": ", problem.what, " -> ", problem.way_out()));
  return lines;
}

// gpt2 with a block more than stages need; parallel.virtual_stages is left to the grid.
Layout layout_of(const std::string& text, int ranks, int microbatches, int blocks = 4) {
  config::RunConfig config;
  config.model.preset = "gpt2-test";
  config.model.layers = blocks;
  config.train.global_batch = microbatches;
  config.train.micro_batch = 1;
  config.train.seq_len = 16;
  config.parallel.pp = ranks;
  config.parallel.schedule = {.kind = Kind::kFile, .file = "grid.csv", .grid = text};
  return make_layout(config, arch::resolve_model(config.model), ranks);
}

TEST(ScheduleFileTest, RunsWhatPyTorchPrints) {
  const ScheduleInput loop = grid(kInterleaved, 2, 2, 4), v = grid(kDualPipeV, 2, 2, 4);
  EXPECT_THAT(said(loop), IsEmpty());
  EXPECT_THAT(said(v), IsEmpty());
  EXPECT_FALSE(read_grid(kInterleaved).in_v());
  EXPECT_TRUE(read_grid(kDualPipeV).in_v());
  EXPECT_EQ(make_schedule(loop),
            make_schedule({.kind = Kind::kInterleaved, .ranks = 2, .virtual_stages = 2, .microbatches = 4}));
  EXPECT_EQ(make_schedule(v), make_schedule({.kind = Kind::kDualPipeV, .ranks = 2, .virtual_stages = 2, .microbatches = 4}));
}

TEST(ScheduleFileTest, TransfersOfTheGridAreLeftOut) {
  const ScheduleInput input = grid(
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD\n 1RECV_F0 ,\"1F0\",1FULL_BACKWARD0,1SEND_B0,,\n\n", 2, 1, 1);
  EXPECT_THAT(said(input), IsEmpty());
  const auto lists = make_schedule(input);
  EXPECT_THAT(lists[0], ElementsAre(Action{.kind = ActionKind::kForward, .stage = 0, .microbatch = 0},
                                    Action{.kind = ActionKind::kBackwardInput, .stage = 0, .microbatch = 0},
                                    Action{.kind = ActionKind::kBackwardWeight, .stage = 0, .microbatch = 0}));
  EXPECT_THAT(lists[1], ElementsAre(Action{.kind = ActionKind::kForward, .stage = 1, .microbatch = 0},
                                    Action{.kind = ActionKind::kBackward, .stage = 1, .microbatch = 0}));
}

TEST(ScheduleFileTest, EveryCellThatIsNoActionIsNamed) {
  for (const char* cell : {"0X0", "F0", "0F", "0F0x", "-1F0", "0F-1", "0B0B1", "(0F0;0B0)", "(0F0;0X0)OVERLAP_F_B",
                           "(0F0;0B0", "0 F 0", "0f0", "99999999999F0", "0F99999999999"})
    EXPECT_THAT(said(grid(cat("0F0,0B0\n1F0,", cell), 2, 1, 1)),
                ElementsAre(HasSubstr(cat("parallel.schedule: grid: row 2, column 2: \"", cell, "\" is not an action"))))
        << cell;
  const std::vector<std::string> all = said(grid("a,b,c,d,e,f,g,h,i,j", 1, 1, 1));
  ASSERT_EQ(all.size(), 9u);
  EXPECT_THAT(all.back(), HasSubstr("and 2 more"));
}

TEST(ScheduleFileTest, SizesBesideTheLayoutAllAtOnce) {
  EXPECT_THAT(said(grid(kInterleaved, 4, 1, 4)),
              ElementsAre("parallel.pp: pp(4), but the grid has 2 rows -> use pp 2, or write a grid with a row for every rank"));
  EXPECT_THAT(said(grid(kInterleaved, 2, 1, 8)),
              ElementsAre("parallel.virtual_stages: pp(2) x virtual_stages(1) = 2, but the grid has stages 0 to 3 -> use "
                          "virtual_stages 2",
                          "train.global_batch: 8 microbatches, but the grid has 0 to 3 -> use global_batch 32"));
  EXPECT_THAT(said(grid("0F0,0B0,2F0,2B0\n1F0,1B0", 2, 1, 1)),
              ElementsAre(HasSubstr("write a grid with a multiple of 2 stages")));
  EXPECT_THAT(said(grid("", 2, 1, 1)), testing::Not(IsEmpty()));
}

TEST(ScheduleFileTest, StagesLieInALoopOrInAV) {
  const std::string swapped = "1F0,1B0\n0F0,0B0\n";
  EXPECT_THAT(said(grid(swapped, 2, 1, 1)),
              ElementsAre(HasSubstr("stages 0 to 1 are on ranks 1, 0; ranks run them in a loop, 0, 1 -> give every stage")));
  EXPECT_THAT(said(grid("0F0,2F0,2B0,0B0,3F0,3B0\n1F0,1B0", 2, 2, 1)),
              ElementsAre(HasSubstr("stages 0 to 3 are on ranks 0, 1, 0, 0; ranks run them in a loop, 0, 1, 0, 1, or in a V, "
                                    "0, 1, 1, 0")));
  EXPECT_THAT(said(grid("0F0,0B0,1F0\n1F0,1B0", 2, 1, 1)), ElementsAre(HasSubstr("stage 1 is on the rows of ranks 0, 1")));
}

TEST(ScheduleFileTest, ActionsThatAreMissingTwiceOrOutOfOrder) {
  EXPECT_THAT(said(grid("0F0,0B0,0B0\n1F0,1I0", 2, 1, 1)),
              ElementsAre(HasSubstr("row 1, column 3: another B or I of stage 0 m0 beside that in column 2"),
                          HasSubstr("row 1, column 3: another B or W of stage 0 m0"), HasSubstr("no B or W of stage 1 m0")));
  EXPECT_THAT(said(grid("0B0,0F0\n1F0,1W0,1I0", 2, 1, 1)),
              ElementsAre(HasSubstr("row 1, column 1: B or I of stage 0 m0 before its F"),
                          HasSubstr("row 2, column 2: B or W of stage 1 m0 before its B or I")));
}

// Gradients are summed in the order of the grid: every layer of a stage keeps to it.
TEST(ScheduleFileTest, BackwardInAnyOrderOfTheMicrobatches) {
  const Layout layout = layout_of("0F0,0F1,0F2,0B1,0B2,0B0\n1F0,1F1,1F2,1I1,1I2,1I0,1W2,1W0,1W1", 2, 3);
  const Program program = build_program(layout);
  EXPECT_THAT(verify(program, layout), IsEmpty());
  for (const ActionKind kind : {ActionKind::kBackwardInput, ActionKind::kBackwardWeight}) {
    Program other = program;
    std::vector<Action>& list = own_list(other, 1);
    const int last = layout.num_layers() - 1;
    const auto of = [&](int m) {
      return std::ranges::find(list, Action{.kind = kind, .layer = last, .microbatch = m});
    };
    std::iter_swap(of(2), of(0));
    EXPECT_THAT(join(verify(other, layout), "\n"), HasSubstr("[order]")) << action_name(kind);
  }
}

TEST(ScheduleFileTest, ADeadlockIsShownAsTheCircle) {
  // Rank 0 wants the gradient of m0 before it runs F of m1; rank 1 runs F of m1 before that gradient.
  EXPECT_THAT(said(grid("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", 2, 1, 2)),
              ElementsAre("parallel.schedule: the grid deadlocks: rank 0: B stage 0 m0 waits for B stage 1 m0 of rank 1, behind F "
                          "stage 1 m1; rank 1: F stage 1 m1 waits for F stage 0 m1 of rank 0, behind B stage 0 m0 -> change "
                          "the order of one of these ranks"));
  // Over three ranks; and with oneself.
  EXPECT_THAT(said(grid("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1", 3, 1, 2)),
              ElementsAre(HasSubstr("rank 0: B stage 0 m0 waits for B stage 1 m0 of rank 1, behind F stage 1 m1; rank 1: F "
                                    "stage 1 m1 waits for F stage 0 m1 of rank 0")));
  EXPECT_THAT(said(grid("1F0,0F0,1B0,0B0", 1, 2, 1)),
              ElementsAre(HasSubstr("rank 0: F stage 1 m0 waits for F stage 0 m0 of itself")));
}

// Rank 0 runs all F first and has output j at j + 1, rank 1 in turns asks for input k > 0 at 3 k - 1: of the last four
// three have to wait for it. With one tensor on its way in each direction both would wait to send.
TEST(ScheduleFileTest, AChannelHoldsAsManyAsTheGridWants) {
  std::string ahead, turns;
  for (int m = 0; m < 8; ++m) {
    ahead += cat("0F", m, ",");
    turns += cat("1F", m, ",1B", m, ",");
  }
  for (int m = 0; m < 8; ++m) ahead += cat("0B", m, ",");
  const Layout layout = layout_of(ahead + "\n" + turns, 2, 8);
  Program program = build_program(layout);
  EXPECT_EQ(program.channel_depth, 4);
  program.channel_depth = 2;
  EXPECT_THAT(verify(program, layout), ElementsAre(HasSubstr("[deadlock] rank 0: SEND_F stage 0 m")));
  program.channel_depth = 1;
  const std::string lines = join(verify(program, layout), "\n");
  EXPECT_THAT(lines, HasSubstr("[deadlock] rank 0: SEND_F stage 0 m"));
  EXPECT_THAT(lines, HasSubstr("behind SEND_B stage 1 m"));
  EXPECT_THAT(lines, HasSubstr("rank 1: SEND_B stage 1 m1 waits for RECV_B stage 0 m0 of rank 0"));
}

// Rank 1 uses in another order than rank 0 makes: what is made first is received first and waits.
TEST(ScheduleFileTest, AChannelKeepsTheOrderOfItsSender) {
  for (const char* text : {"0F0,0F1,0F2,0B0,0B1,0B2\n1F2,1F0,1F1,1B0,1B1,1B2", "0F2,0F0,0F1,0B1,0B2,0B0\n1F0,1F1,1F2,1B2,1B0,1B1"})
    for (const bool overlap : {true, false}) {
      Layout layout = layout_of(text, 2, 3);
      layout.overlap = overlap;
      const Program program = build_program(layout);
      EXPECT_THAT(verify(program, layout), IsEmpty()) << text;
      std::vector<int> received;
      for (const Action& action : program.list(1))
        if (action.kind == ActionKind::kRecvForward) received.push_back(action.microbatch);
      EXPECT_THAT(received, text[2] == '0' ? ElementsAre(0, 1, 2) : ElementsAre(2, 0, 1)) << text;
      EXPECT_GT(predict_memory(layout, program, 1).peak, 0);
    }
}

// What can be run next is drawn until all has run: a grid that ends, in whatever order of ranks, stages and microbatches.
std::string drawn_grid(std::mt19937& random, int ranks, int each, bool in_v, int microbatches) {
  const Pipeline pipeline{.kind = in_v ? Kind::kZbV : Kind::kInterleaved, .ranks = ranks, .virtual_stages = each};
  const int stages = pipeline.stages();
  enum Done { kNothing, kF, kI, kW };
  std::map<std::pair<int, int>, Done> done;  // stage, microbatch
  std::vector<std::vector<std::string>> rows(static_cast<size_t>(ranks));
  for (int left = stages * microbatches; left > 0;) {
    const auto draw = [&](int count) { return std::uniform_int_distribution<int>(0, count - 1)(random); };
    const int stage = draw(stages), m = draw(microbatches);
    Done& now = done[{stage, m}];
    const auto has = [&](int other, Done what) { return other < 0 || other == stages || done[{other, m}] >= what; };
    std::string kind;
    if (now == kNothing && has(stage - 1, kF)) kind = "F", now = kF;
    else if (now == kF && has(stage + 1, kI) && draw(2) == 0) kind = "B", now = kW;
    else if (now == kF && has(stage + 1, kI)) kind = "I", now = kI;
    else if (now == kI) kind = "W", now = kW;
    if (kind.empty()) continue;
    if (now == kW) --left;
    rows[static_cast<size_t>(pipeline.rank_of(stage))].push_back(cat(stage, kind, m));
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) lines.push_back(join(row, ","));
  return join(lines, "\n");
}

TEST(ScheduleFileTest, EveryOrderThatEndsIsTakenAndProved) {
  std::mt19937 random(7);
  int deep = 0;
  for (int i = 0; i < 200; ++i) {
    const int ranks = 2 + i % 3, each = 1 + i / 3 % 2, microbatches = 1 + i % 7;
    const std::string text = drawn_grid(random, ranks, each, each == 2 && i % 2 == 0, microbatches);
    Layout layout = layout_of(text, ranks, microbatches, 2 * ranks);
    layout.overlap = i % 5 != 0;
    SCOPED_TRACE(text);
    const Program program = build_program(layout);
    EXPECT_THAT(verify(program, layout), IsEmpty());
    deep += program.channel_depth > 1;
    for (int rank = 0; rank < ranks; ++rank) EXPECT_GT(predict_memory(layout, program, rank).peak, 0);
  }
  EXPECT_GT(deep, 50);
}

TEST(ScheduleFileTest, AConfigurationNamesTheFile) {
  const Layout v = layout_of(kDualPipeV, 2, 4), loop = layout_of(kInterleaved, 2, 4);
  EXPECT_THAT(v.pipeline.stages_of(1), ElementsAre(1, 2));
  EXPECT_THAT(loop.pipeline.stages_of(1), ElementsAre(1, 3));
  for (const Layout& each : {v, loop}) EXPECT_THAT(verify(build_program(each), each), IsEmpty());
  const auto refused = [](const char* text, int blocks) {
    try {
      layout_of(text, 2, 4, blocks);
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.message().code, "LS1101");
      return cat(error.message().what, " -> ", error.message().way_out);
    }
    return std::string("no error");
  };
  EXPECT_THAT(refused("0F0,0B0\n1F0,1B0,9Q9\n", 4), HasSubstr("grid: row 2, column 3: \"9Q9\" is not an action"));
  // Stages that the grid has count beside the layers of the model.
  const std::string few = refused(kInterleaved, 1);
  EXPECT_THAT(few, HasSubstr("pp(2) x virtual_stages(2) = 4 stages, but embedding + model.layers(1) + head = 3 layers"));
  EXPECT_THAT(few, HasSubstr("use schedule 1f1b"));
}

TEST(ScheduleProblemsTest, CombinationsThatCannotBe) {
  EXPECT_THAT(said({.kind = Kind::kInterleaved, .ranks = 4, .virtual_stages = 2, .microbatches = 6, .sequences = 8}),
              ElementsAre("train.global_batch: schedule interleaved: microbatches(6) % pp(4) = 2 -> use global_batch 32 or 64"));
  EXPECT_THAT(said({.kind = Kind::kInterleaved, .ranks = 4, .virtual_stages = 2, .microbatches = 3}),
              ElementsAre(HasSubstr("microbatches(3) % pp(4) = 3 -> use global_batch 4")));
  for (const Kind kind : {Kind::kNaive, Kind::kGPipe, Kind::kOneFOneB, Kind::kZbH1, Kind::kZbH2})
    EXPECT_THAT(said({.kind = kind, .ranks = 2, .virtual_stages = 2, .microbatches = 2}),
                ElementsAre(cat("parallel.virtual_stages: virtual_stages(2), but schedule ", schedule_name(kind),
                                " has one stage of a rank -> use virtual_stages 1, or schedule interleaved")));
  for (const Kind kind : {Kind::kZbV, Kind::kDualPipeV})
    for (const int each : {1, 3})
      EXPECT_THAT(said({.kind = kind, .ranks = 2, .virtual_stages = each, .microbatches = 2}),
                  ElementsAre(HasSubstr("has two stages of a rank -> use virtual_stages 2")));
  EXPECT_THROW(make_schedule({.kind = Kind::kInterleaved, .ranks = 4, .virtual_stages = 2, .microbatches = 6}), InternalError);
}

}  // namespace
}  // namespace lockstep::program
