// Schedules from files, and what is said of combinations that cannot be.
#include "lockstep/program/schedule_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/program/schedules.h"
#include "lockstep/program/verify.h"

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
  for (const ScheduleProblem& problem : schedule_problems(input))
    lines.push_back(cat(problem.key, ": ", problem.what, " -> ", problem.way_out));
  return lines;
}

TEST(ScheduleFileTest, RunsWhatPyTorchPrints) {
  const ScheduleInput loop = grid(kInterleaved, 2, 2, 4), v = grid(kDualPipeV, 2, 2, 4);
  EXPECT_THAT(said(loop), IsEmpty());
  EXPECT_THAT(said(v), IsEmpty());
  EXPECT_FALSE(grid_lies_in_v(kInterleaved));
  EXPECT_TRUE(grid_lies_in_v(kDualPipeV));
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
              ElementsAre("parallel.pp: pp(4), but the grid has 2 rows -> use pp 2, or a grid with a row for every rank"));
  EXPECT_THAT(said(grid(kInterleaved, 2, 1, 8)),
              ElementsAre("parallel.virtual_stages: pp(2) x virtual_stages(1) = 2, but the grid has stages 0 to 3 -> use "
                          "virtual_stages 2",
                          "train.global_batch: 8 microbatches, but the grid has 0 to 3 -> use 4 microbatches: global_batch 32"));
  EXPECT_THAT(said(grid("0F0,0B0,2F0,2B0\n1F0,1B0", 2, 1, 1)),
              ElementsAre(HasSubstr("use a grid with a multiple of 2 stages")));
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
  EXPECT_THAT(said(grid("0F0,0F1,0B0,0B1\n1F0,1F1,1I1,1I0,1W0,1W1", 2, 1, 2)),
              ElementsAre(HasSubstr("row 2, column 3: B or I of stage 1 m1 before that of m0, but gradients are summed in the "
                                    "order of the microbatches")));
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

// Rank 0 runs all F first, rank 1 in turns: with one tensor on its way in each direction both wait to send.
TEST(ScheduleFileTest, ADeadlockOfTransfersIsShownToo) {
  std::string ahead, turns;
  for (int m = 0; m < 8; ++m) {
    ahead += cat("0F", m, ",");
    turns += cat("1F", m, ",1B", m, ",");
  }
  for (int m = 0; m < 8; ++m) ahead += cat("0B", m, ",");
  const std::vector<std::string> lines = said(grid(ahead + "\n" + turns, 2, 1, 8));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("rank 0: SEND_F stage 0 m"));
  EXPECT_THAT(lines[0], HasSubstr("behind SEND_B stage 1 m"));
  EXPECT_THAT(lines[0], HasSubstr("rank 1: SEND_B stage 1 m1 waits for RECV_B stage 0 m0 of rank 0"));
}

TEST(ScheduleFileTest, AConfigurationNamesTheFile) {
  const std::string path = testing::TempDir() + "lockstep_schedule_file_test.csv";
  const auto layout = [&](const std::string& text) {
    write_file(path, text);
    config::RunConfig config;
    config.model.preset = "gpt2-test";
    config.model.layers = 4;
    config.train.global_batch = 4;
    config.train.micro_batch = 1;
    config.train.seq_len = 16;
    config.parallel.pp = 2;
    config.parallel.schedule = "file:" + path;
    config.parallel.virtual_stages = 2;
    return make_layout(config, arch::resolve_model(config.model), 2);
  };
  const Layout v = layout(kDualPipeV), loop = layout(kInterleaved);
  EXPECT_THAT(v.pipeline.stages_of(1), ElementsAre(1, 2));
  EXPECT_THAT(loop.pipeline.stages_of(1), ElementsAre(1, 3));
  for (const Layout& each : {v, loop}) EXPECT_THAT(verify(build_program(each), each), IsEmpty());
  try {
    layout("0F0,0B0\n1F0,1B0,9Q9\n");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message().code, "LS1101");
    EXPECT_THAT(error.message().what, HasSubstr("grid: row 2, column 3: \"9Q9\" is not an action"));
  }
  std::filesystem::remove(path);
}

TEST(ScheduleProblemsTest, CombinationsThatCannotBe) {
  EXPECT_THAT(said({.kind = Kind::kInterleaved, .ranks = 4, .virtual_stages = 2, .microbatches = 6, .sequences = 8}),
              ElementsAre("train.global_batch: schedule interleaved: microbatches(6) % pp(4) = 2 -> use 4 or 8 microbatches: "
                          "global_batch 32 or 64"));
  EXPECT_THAT(said({.kind = Kind::kInterleaved, .ranks = 4, .virtual_stages = 2, .microbatches = 3}),
              ElementsAre(HasSubstr("microbatches(3) % pp(4) = 3 -> use 4 microbatches")));
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
