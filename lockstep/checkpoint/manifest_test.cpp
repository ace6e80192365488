#include "lockstep/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

using ::testing::HasSubstr;

const char* const kFile = "model/shard-00001-model-00001-of-00001.safetensors";

// A 5 x 3 tensor in two pieces, and a scalar.
Manifest example() {
  Manifest manifest{.step = 1200, .version = "0.1.0"};
  manifest.files[kFile] = {.size = 200, .hash = 0xfedcba9876543210};
  manifest.files[kTrainStateName] = {.size = 10, .hash = 7};
  manifest.tensors["a.weight"] = {
      .dtype = "F32", .shape = {5, 3}, .pieces = {{kFile, {{0, 0}, {2, 3}}, 1}, {kFile, {{2, 0}, {3, 3}}, 2}}};
  manifest.tensors["scale"] = {.dtype = "BF16", .shape = {}, .pieces = {{kFile, {{}, {}}, 3}}};
  return manifest;
}

std::string problem(const Manifest& manifest) {
  try {
    parse_manifest(manifest_text(manifest), "manifest.json");
    return "";
  } catch (const CheckpointError& error) {
    return error.message().code + " " + error.message().what;
  }
}

TEST(Manifest, ComesBackAsItWas) {
  EXPECT_EQ(parse_manifest(manifest_text(example()), "manifest.json"), example());
  EXPECT_EQ(example().total_bytes(), 210u);
}

TEST(Manifest, EveryFlippedBitIsFound) {
  const std::string text = manifest_text(example());
  for (size_t i = 0; i < text.size() * 8; ++i) {
    std::string flipped = text;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << i % 8));
    EXPECT_THROW(parse_manifest(flipped, "manifest.json"), CheckpointError) << "bit " << i;
  }
  for (size_t size = 0; size < text.size(); ++size)
    EXPECT_THROW(parse_manifest(text.substr(0, size), "manifest.json"), CheckpointError) << "cut at " << size;
}

TEST(Manifest, PiecesMustCoverEachTensorOnce) {
  Manifest hole = example();
  hole.tensors["a.weight"].pieces.erase(hole.tensors["a.weight"].pieces.begin());  // a lost shard in front
  EXPECT_THAT(problem(hole), HasSubstr("LS1305 tensor 'a.weight' is not whole: 9 of 15"));
  Manifest overlap = example();
  overlap.tensors["a.weight"].pieces[1].box = {{1, 0}, {3, 3}};
  EXPECT_THAT(problem(overlap), HasSubstr("stored twice"));
  Manifest outside = example();
  outside.tensors["a.weight"].pieces[1].box = {{2, 1}, {3, 3}};
  EXPECT_THAT(problem(outside), HasSubstr("has a piece at [2, 1]"));
  Manifest empty_piece = example();
  empty_piece.tensors["a.weight"].pieces.push_back({kFile, {{5, 0}, {0, 3}}, 1});
  EXPECT_THAT(problem(empty_piece), HasSubstr("LS1305"));
  Manifest no_pieces = example();
  no_pieces.tensors["scale"].pieces.clear();
  EXPECT_THAT(problem(no_pieces), HasSubstr("'scale' is not whole"));
  Manifest huge = example();
  huge.tensors["a.weight"].shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(problem(huge), HasSubstr("LS1302"));
}

TEST(Manifest, NamesNoFileOutsideItsFolder) {
  for (const char* path : {"../x", "model/../x", "/etc/passwd", "model/", "other/x", "model/a/b", "", ".."}) {
    Manifest manifest = example();
    manifest.files[path] = {};
    EXPECT_THAT(problem(manifest), HasSubstr("is no file of a checkpoint")) << path;
  }
  Manifest unlisted = example();
  unlisted.tensors["scale"].pieces[0].file = "model/other.safetensors";
  EXPECT_THAT(problem(unlisted), HasSubstr("unlisted file"));
  Manifest dtype = example();
  dtype.tensors["scale"].dtype = "F31";
  EXPECT_THAT(problem(dtype), HasSubstr("unknown dtype"));
}

TEST(Manifest, MergesTheRanksParts) {
  Manifest first = example(), second = example();
  second.tensors.erase("scale");
  first.tensors["a.weight"].pieces.pop_back();
  second.tensors["a.weight"].pieces.erase(second.tensors["a.weight"].pieces.begin());
  first.merge(second);
  EXPECT_EQ(first, example());
  second.tensors["a.weight"].shape = {5, 4};
  EXPECT_THROW(first.merge(second), CheckpointError);
}

TEST(Box, Intersection) {
  const Box a{{0, 2}, {4, 4}}, b{{3, 0}, {4, 3}};
  EXPECT_EQ(intersect(a, b), (Box{{3, 2}, {1, 1}}));
  EXPECT_EQ(intersect(a, Box{{4, 0}, {1, 9}}), std::nullopt);
  EXPECT_EQ(intersect(Box{{}, {}}, Box{{}, {}}), (Box{{}, {}}));
}

}  // namespace
}  // namespace lockstep::checkpoint
