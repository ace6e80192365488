// Programs of pipelines: all are sound, and of broken ones the rule of the verifier that must name each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <stdexcept>

#include "lockstep/base/text.h"
#include "lockstep/program/passes.h"
#include "lockstep/program/verify.h"

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

}  // namespace
}  // namespace lockstep::program
