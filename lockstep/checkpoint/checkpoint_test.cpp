// Saving and loading on several ranks, in every pair of layouts, and what happens to damaged checkpoints.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>


#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/save.h"
#include "lockstep/checkpoint/shard_writer.h"
#include "lockstep/mesh/placement.h"
#include "support/folders.h"
#include "support/run_ranks.h"

namespace lockstep::checkpoint {
namespace {

using engine::StateKind;
using engine::StateTensor;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

enum class Cut {
  kReplicas,  // every rank holds everything, as in DDP
  kServer,    // parameters everywhere, optimizer state on rank 0 alone
  kRows,      // dim 0 in uneven parts, short tensors on the first ranks only
  kColumns,   // the last dim in uneven parts
};
const std::map<Cut, std::string> kCutNames = {
    {Cut::kReplicas, "replicas"}, {Cut::kServer, "server"}, {Cut::kRows, "rows"}, {Cut::kColumns, "columns"}};

const std::map<std::string, Sizes> kShapes = {
    {"embed.weight", {7, 5}}, {"norm.weight", {3}}, {"scale", {}}, {"wide.weight", {1, 9}}, {"cube", {3, 2, 4}}};

// The whole tensor: other values for every name and kind.
at::Tensor whole(const std::string& name, StateKind kind) {
  const Sizes& shape = kShapes.at(name);
  const auto seed = static_cast<int64_t>(hash64(name) % 1000) + 1000 * static_cast<int64_t>(kind.key.size());
  return at::arange(seed, seed + volume(shape)).to(at::kFloat).div_(7).reshape(shape);
}

// The tensors that `rank` of `n` holds, zero or filled; each a view into a larger buffer, as in the engine.
std::vector<StateTensor> state_of(Cut cut, int n, int rank, bool filled, const std::vector<StateKind>& kinds) {
  std::vector<StateTensor> state;
  for (const auto& [name, shape] : kShapes) {
    for (const StateKind kind : kinds) {
      if (cut == Cut::kServer && kind != StateKind::kParameter && rank != 0) continue;
      StateTensor tensor{
          .name = name, .kind = kind, .global_shape = shape, .offset = Sizes(shape.size(), 0), .local = {}};
      at::Tensor values = whole(name, kind);
      const bool replicated = cut == Cut::kReplicas || cut == Cut::kServer || shape.empty();
      if (replicated && !(cut == Cut::kServer && kind != StateKind::kParameter)) {
        tensor.replica = rank;
        tensor.num_replicas = n;
      }
      if (!replicated) {
        const size_t dim = cut == Cut::kRows ? 0 : shape.size() - 1;
        const auto range = mesh::shard_range(shape[dim], n, rank);
        tensor.offset[dim] = range.begin;
        values = values.narrow(static_cast<int64_t>(dim), range.begin, range.size());
      }
      const at::Tensor buffer = at::zeros({values.numel() + 3});
      tensor.local = buffer.narrow(0, 3, values.numel()).view(values.sizes());
      if (filled) tensor.local.copy_(values);
      state.push_back(std::move(tensor));
    }
  }
  return state;
}

const std::vector<StateKind> kAll = {StateKind::kParameter, StateKind{"exp_avg"}, StateKind{"exp_avg_sq"}};

void expect_filled(const std::vector<StateTensor>& state) {
  for (const StateTensor& tensor : state) {
    at::Tensor expected = whole(tensor.name, tensor.kind);
    for (size_t dim = 0; dim < tensor.offset.size(); ++dim)
      expected =
          expected.narrow(static_cast<int64_t>(dim), tensor.offset[dim], tensor.local.size(static_cast<int64_t>(dim)));
    EXPECT_TRUE(at::equal(tensor.local, expected)) << saved_name(tensor);
  }
}

TrainState train_state(int64_t step) {
  return {.step = step,
          .consumed_samples = step * 8,
          .consumed_tokens = step * 1024,
          .seed = 0xffffffffffffffff,
          .data = {{"train", "0123456789abcdef"}, {"shuffle", true}},
          .model = {{"family", "gpt2"}, {"layers", 2}},
          .version = "0.1.0",
          .last_loads = {{"blocks.0", {12, 0, 7}}, {"blocks.1", {9, 9, 1}}},
          .world_size = 4,
          .layout = "dp 4"};
}

void on_ranks(int n, const std::function<void(comm::Communicator&)>& body) {
  testing::run_ranks(n, [&](comm::World& world) { body(*world.all_ranks("world")); });
}

fs::path fresh_folder(const std::string& name) { return support::fresh_place("checkpoint-" + name) / "checkpoints"; }

struct SaveOptions {
  Cut cut = Cut::kReplicas;
  int ranks = 1;
  int64_t step = 100;
  int keep = 0;
};
void save_all(const fs::path& directory, const SaveOptions& options) {
  on_ranks(options.ranks, [&](comm::Communicator& world) {
    const auto state = state_of(options.cut, options.ranks, world.rank(), true, kAll);
    const TrainState progress = train_state(options.step);
    const SaveResult result =
        save({.directory = directory, .state = state, .train_state = progress, .world = world, .keep = options.keep});
    EXPECT_EQ(result.path, directory / step_name(options.step));
    EXPECT_EQ(result.bytes, read_manifest(result.path).total_bytes());
  });
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

TEST(Checkpoint, AnyLayoutLoadsWhatAnyLayoutSaved) {
  for (const auto& [from, from_name] : kCutNames) {
    for (const int writers : {1, 4}) {
      const fs::path directory = fresh_folder("layouts");
      save_all(directory, {.cut = from, .ranks = writers});
      const Manifest manifest = read_manifest(directory / "step-00000100");
      EXPECT_EQ(verify_sums(directory / "step-00000100", manifest), std::vector<std::string>());
      for (const auto& [to, to_name] : kCutNames) {
        for (const int readers : {1, 2, 3, 4}) {
          SCOPED_TRACE(cat(from_name, " ", writers, " -> ", to_name, " ", readers));
          for (int rank = 0; rank < readers; ++rank) {
            const auto state = state_of(to, readers, rank, false, kAll);
            EXPECT_EQ(load(directory / "step-00000100", state), train_state(100));
            expect_filled(state);
          }
        }
      }
    }
  }
}

TEST(Checkpoint, HasItsFiles) {
  const fs::path directory = fresh_folder("files");
  save_all(directory, {.ranks = 2, .step = 1200});
  EXPECT_THAT(names_in(directory), UnorderedElementsAre("step-00001200", "latest"));
  EXPECT_EQ(fs::read_symlink(directory / "latest"), "step-00001200");
  const fs::path step = directory / "step-00001200";
  EXPECT_THAT(names_in(step), UnorderedElementsAre("model", "optim", "train_state.json", "manifest.json"));
  EXPECT_THAT(names_in(step / "model"), UnorderedElementsAre("shard-00001-model-00001-of-00001.safetensors",
                                                             "shard-00002-model-00001-of-00001.safetensors"));
  // Seven rows: four on the first replica, three on the second. The one row of "wide" and the scalar: the first only.
  const SafetensorsFile second(step / "model/shard-00002-model-00001-of-00001.safetensors");
  EXPECT_EQ(second.find("embed.weight")->shape, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(second.find("wide.weight"), nullptr);
  EXPECT_EQ(second.find("scale"), nullptr);
  EXPECT_EQ(second.header().metadata.at("format"), "pt");
  const Json sharding = parse_json(second.header().metadata.at("DCP_SHARDING_INFO"), "metadata");
  EXPECT_EQ(sharding, Json::parse(R"({"embed.weight":{"saved_offsets":[4,0]},"norm.weight":{"saved_offsets":[2]},
                                      "cube":{"saved_offsets":[2,0,0]}})"));
  const SafetensorsFile optim(step / "optim/shard-00001-model-00001-of-00001.safetensors");
  EXPECT_NE(optim.find("optim.exp_avg.embed.weight"), nullptr);
  EXPECT_NE(optim.find("optim.exp_avg_sq.scale"), nullptr);
}

TEST(Checkpoint, ARankWithSeveralPiecesOfATensorWritesSeveralFiles) {
  const fs::path directory = fresh_folder("pieces");
  auto state = state_of(Cut::kRows, 2, 0, true, kAll);
  const auto rest = state_of(Cut::kRows, 2, 1, true, kAll);
  for (const StateTensor& tensor : rest)
    if (!tensor.global_shape.empty()) state.push_back(tensor);
  for (StateTensor& tensor : state) tensor.num_replicas = 1, tensor.replica = 0;
  on_ranks(1, [&](comm::Communicator& world) {
    save({.directory = directory, .state = state, .train_state = train_state(1), .world = world});
  });
  EXPECT_THAT(names_in(directory / "step-00000001/model"),
              UnorderedElementsAre("shard-00001-model-00001-of-00002.safetensors",
                                   "shard-00001-model-00002-of-00002.safetensors"));
  const auto loaded = state_of(Cut::kColumns, 1, 0, false, kAll);
  load(directory / "step-00000001", loaded);
  expect_filled(loaded);
}

TEST(Checkpoint, PrecisionIsConvertedFromTheBestCopy) {
  const fs::path directory = fresh_folder("precision");
  const fs::path mixed = directory / "step-00000001", plain = directory / "step-00000002";
  on_ranks(1, [&](comm::Communicator& world) {
    // bf16 parameters with fp32 masters, and fp32 parameters alone.
    auto state = state_of(Cut::kReplicas, 1, 0, true, {StateKind::kMaster});
    for (const auto& parameter : state_of(Cut::kReplicas, 1, 0, true, {StateKind::kParameter})) {
      state.push_back(parameter);
      state.back().local = whole(parameter.name, StateKind::kMaster).to(at::kBFloat16);
    }
    save({.directory = directory, .state = state, .train_state = train_state(1), .world = world});
    const auto fp32 = state_of(Cut::kReplicas, 1, 0, true, {StateKind::kParameter});
    save({.directory = directory, .state = fp32, .train_state = train_state(2), .world = world});
  });
  auto fp32 = state_of(Cut::kRows, 2, 1, false, {StateKind::kParameter});
  load(mixed, fp32);
  for (StateTensor& tensor : fp32) tensor.kind = StateKind::kMaster;
  expect_filled(fp32);  // not rounded to bf16

  auto masters = state_of(Cut::kRows, 2, 1, false, {StateKind::kMaster});
  load(plain, masters);
  for (StateTensor& tensor : masters) tensor.kind = StateKind::kParameter;
  expect_filled(masters);

  auto bf16 = state_of(Cut::kReplicas, 1, 0, false, {StateKind::kParameter});
  for (StateTensor& tensor : bf16) tensor.local = tensor.local.to(at::kBFloat16);
  load(plain, bf16);
  for (const StateTensor& tensor : bf16)
    EXPECT_TRUE(at::equal(tensor.local, whole(tensor.name, StateKind::kParameter).to(at::kBFloat16))) << tensor.name;

  try {
    load(plain, state_of(Cut::kReplicas, 1, 0, false, kAll));
    FAIL() << "made up optimizer state";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.message().code, "LS1308");
    EXPECT_THAT(error.what(), HasSubstr("optim.exp_avg.cube"));
  }
  const auto parameters = state_of(Cut::kReplicas, 1, 0, false, kAll);
  EXPECT_EQ(load_parameters_only(plain, parameters).step, 2);
  for (const StateTensor& tensor : parameters) {
    const bool loaded = tensor.kind == StateKind::kParameter;
    EXPECT_EQ(at::equal(tensor.local, whole(tensor.name, tensor.kind)), loaded) << saved_name(tensor);
  }
}

TEST(Checkpoint, AnotherModelIsNamed) {
  const fs::path directory = fresh_folder("model");
  save_all(directory, {});
  auto state = state_of(Cut::kReplicas, 1, 0, false, kAll);
  for (StateTensor& tensor : state) {
    if (tensor.name == "embed.weight") tensor.global_shape = {8, 5};
    if (tensor.name == "scale") tensor.name = "scales";
  }
  try {
    load(directory / "step-00000100", state);
    FAIL() << "loaded another model";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.message().code, "LS1307");
    EXPECT_THAT(error.what(), HasSubstr("belongs to another model (2 of 5 shapes differ)"));
    EXPECT_THAT(error.what(), HasSubstr("embed.weight   checkpoint [7, 5]   config [8, 5]"));
  }
  EXPECT_EQ(state[0].local.abs().sum().item<float>(), 0);  // nothing was written
  on_ranks(2, [&](comm::Communicator& world) {
    const auto same = state_of(Cut::kReplicas, 2, world.rank(), false, kAll);
    // A setting of another value, one that only the config has, one that only the checkpoint has.
    for (const auto& [model, difference] : std::vector<std::pair<Json, std::string>>{
             {{{"layers", 3}, {"family", "gpt2"}}, "layers   checkpoint 2   config 3"},
             {{{"layers", 2}, {"family", "gpt2"}, {"window", 8}}, "window   checkpoint null   config 8"},
             {{{"family", "gpt2"}}, "layers   checkpoint 2   config null"}}) {
      try {
        resume({.path = directory, .state = same, .world = world, .model = model});
        FAIL() << "loaded another model";
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.message().code, "LS1307");
        EXPECT_THAT(error.what(), HasSubstr(difference));
      }
    }
  });
}

// Saves steps 100 and 200, damages 200, and expects a resume on two ranks to load 100 and to say why.
void expect_fallback(const std::function<void(const fs::path& step)>& damage, const std::string& reason) {
  const fs::path directory = fresh_folder("fallback");
  save_all(directory, {.cut = Cut::kRows, .ranks = 2, .step = 100});
  save_all(directory, {.cut = Cut::kRows, .ranks = 2, .step = 200});
  damage(directory / "step-00000200");
  on_ranks(2, [&](comm::Communicator& world) {
    const auto state = state_of(Cut::kRows, 2, world.rank(), false, kAll);
    const auto resumed = resume({.path = directory, .state = state, .world = world});
    ASSERT_TRUE(resumed.has_value());
    EXPECT_EQ(resumed->train_state, train_state(100));
    expect_filled(state);
    ASSERT_EQ(resumed->skipped.size(), 1u);
    EXPECT_EQ(resumed->skipped[0].step, 200);
    EXPECT_THAT(resumed->skipped[0].problem, HasSubstr(reason));
  });
}

const char* const kShard2 = "model/shard-00002-model-00001-of-00001.safetensors";

void flip_bit(const fs::path& path, size_t from_end) {
  std::string bytes = read_file(path);
  bytes[bytes.size() - 1 - from_end] = static_cast<char>(bytes[bytes.size() - 1 - from_end] ^ 4);
  write_file(path, bytes);
}

TEST(Checkpoint, DamageIsNamedAndThePreviousStepTaken) {
  expect_fallback([](const fs::path& step) { fs::remove(step / kShard2); }, cat(kShard2, ": missing"));
  expect_fallback([](const fs::path& step) { fs::resize_file(step / kShard2, 300); }, cat(kShard2, ": 300 bytes"));
  expect_fallback([](const fs::path& step) { flip_bit(step / kShard2, 2); }, "is damaged: xxh3");
  expect_fallback([](const fs::path& step) { flip_bit(step / kShard2, read_file(step / kShard2).size() - 30); },
                  kShard2);
  expect_fallback([](const fs::path& step) { flip_bit(step / "manifest.json", 200); },
                  "manifest.json: damaged manifest");
  expect_fallback([](const fs::path& step) { flip_bit(step / "train_state.json", 20); }, "train_state.json: its bytes");
  expect_fallback([](const fs::path& step) { fs::remove(step / "manifest.json"); }, "has no manifest.json");
  expect_fallback(
      [](const fs::path& step) {
        fs::remove(step / kShard2);
        fs::create_symlink(step.parent_path() / "step-00000100" / kShard2, step / kShard2);
      },
      cat(kShard2, ": missing"));
  expect_fallback(
      [](const fs::path& step) {
        fs::remove_all(step);
        fs::copy(step.parent_path() / "step-00000100", step, fs::copy_options::recursive);
      },
      "it is of step 100, not of 200");
}

// The swap of two files of one size is seen in their headers.
TEST(Checkpoint, SwappedShardsAreFound) {
  expect_fallback(
      [](const fs::path& step) {
        fs::rename(step.parent_path() / "step-00000100" / kShard2, step / "kept");
        const fs::path first = step / "model/shard-00001-model-00001-of-00001.safetensors";
        fs::copy_file(step / "kept", step.parent_path() / "step-00000100" / kShard2);
        fs::rename(first, step / "first");
        fs::rename(step / kShard2, first);
        fs::rename(step / "first", step / kShard2);
      },
      "step-00000200/model/shard-0000");
}

TEST(Checkpoint, VerifySumsNamesEveryDamagedTensor) {
  const fs::path directory = fresh_folder("sums");
  save_all(directory, {.cut = Cut::kRows, .ranks = 2});
  const fs::path step = directory / "step-00000100";
  const Manifest manifest = read_manifest(step);
  flip_bit(step / kShard2, 0);
  flip_bit(step / "optim/shard-00001-model-00001-of-00001.safetensors", 0);
  const auto problems = verify_sums(step, manifest);
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_THAT(problems[0], HasSubstr("tensor 'norm.weight' is damaged"));
}

TEST(Checkpoint, NoneIsNothingAndNoneWholeIsAnError) {
  const fs::path directory = fresh_folder("none");
  const auto resume_on_two = [&](const std::function<void(const ResumeRequest&)>& body) {
    on_ranks(2, [&](comm::Communicator& world) {
      const auto state = state_of(Cut::kRows, 2, world.rank(), false, kAll);
      body({.path = directory, .state = state, .world = world});
    });
  };
  resume_on_two([](const ResumeRequest& request) { EXPECT_FALSE(resume(request).has_value()); });
  save_all(directory, {});
  fs::remove(directory / "step-00000100/manifest.json");
  resume_on_two([](const ResumeRequest& request) {
    try {
      resume(request);
      FAIL() << "resumed from nothing";
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.message().code, "LS1301");
      EXPECT_THAT(error.what(), HasSubstr("step-00000100"));
    }
  });
}

TEST(Checkpoint, ResumesFromANamedStep) {
  const fs::path directory = fresh_folder("named");
  save_all(directory, {.step = 100});
  save_all(directory, {.step = 200});
  for (const auto& [name, step] :
       std::map<std::string, int64_t>{{"step-00000100", 100}, {"step-00000100/", 100}, {"latest", 200}})
    on_ranks(2, [&, &name = name, &step = step](comm::Communicator& world) {
      const auto state = state_of(Cut::kRows, 2, world.rank(), false, kAll);
      const auto resumed = resume({.path = directory / name, .state = state, .world = world});
      EXPECT_EQ(resumed->train_state.step, step);
      expect_filled(state);
    });
}

TEST(Checkpoint, AnInterruptedSaveIsIgnoredAndCleared) {
  const fs::path directory = fresh_folder("interrupted");
  save_all(directory, {.ranks = 2, .step = 100});
  // As a kill leaves it: shards written, no manifest, not renamed.
  write_shards(directory / ".tmp-step-00000200", state_of(Cut::kReplicas, 1, 0, true, kAll), 0);
  EXPECT_EQ(find_latest(directory).step, 100);
  EXPECT_EQ(find_latest(directory).skipped.size(), 0u);
  save_all(directory, {.ranks = 1, .step = 300});
  EXPECT_THAT(names_in(directory), UnorderedElementsAre("step-00000100", "step-00000300", "latest"));
}

TEST(Checkpoint, KeepsTheNewest) {
  const fs::path directory = fresh_folder("keep");
  for (const int64_t step : {1, 2, 3, 4}) save_all(directory, {.step = step, .keep = 2});
  EXPECT_THAT(names_in(directory), UnorderedElementsAre("step-00000003", "step-00000004", "latest"));
  // A broken step does not count as one that is kept, and a later one of an abandoned branch is left alone.
  flip_bit(directory / "step-00000004/manifest.json", 50);
  save_all(directory, {.step = 5, .keep = 2});
  EXPECT_THAT(names_in(directory), UnorderedElementsAre("step-00000003", "step-00000004", "step-00000005", "latest"));
  save_all(directory, {.step = 2, .keep = 1});
  EXPECT_THAT(names_in(directory),
              UnorderedElementsAre("step-00000002", "step-00000003", "step-00000004", "step-00000005", "latest"));
}

TEST(Checkpoint, AStepIsReplacedByANewOneOfItsNumber) {
  const fs::path directory = fresh_folder("replace");
  save_all(directory, {.ranks = 4, .step = 7});
  save_all(directory, {.ranks = 1, .step = 7});
  EXPECT_EQ(names_in(directory / "step-00000007/model").size(), 1u);
  EXPECT_THAT(names_in(directory), UnorderedElementsAre("step-00000007", "latest"));
}

TEST(Checkpoint, AFailureOnOneRankIsEveryRanksError) {
  const fs::path directory = fresh_folder("failure");
  save_all(directory, {.ranks = 2, .step = 1});
  on_ranks(3, [&](comm::Communicator& world) {
    auto state = state_of(Cut::kReplicas, 3, world.rank(), true, kAll);
    // Rank 1 takes itself for replica 2: a hole and an overlap, which rank 0 finds when it merges.
    if (world.rank() == 1)
      for (StateTensor& tensor : state) tensor.replica = 2;
    try {
      save({.directory = directory, .state = state, .train_state = train_state(2), .world = world, .keep = 1});
      FAIL() << "wrote a checkpoint with a hole";
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.message().code, "LS1306");
      EXPECT_THAT(error.what(), HasSubstr("step 2 was not written: rank 0: "));
    }
  });
  EXPECT_EQ(find_latest(directory).step, 1);
  // A disk that refuses, on every rank.
  fs::remove_all(directory / "latest");
  write_file(directory.parent_path() / "file", "");
  on_ranks(2, [&](comm::Communicator& world) {
    const auto state = state_of(Cut::kReplicas, 2, world.rank(), true, kAll);
    EXPECT_THROW(save({.directory = directory.parent_path() / "file" / "checkpoints",
                       .state = state,
                       .train_state = train_state(3),
                       .world = world}),
                 CheckpointError);
  });
}

TEST(Directory, StepNames) {
  EXPECT_EQ(step_name(1200), "step-00001200");
  EXPECT_EQ(step_name(1234567890), "step-1234567890");
  EXPECT_EQ(parse_step_name("step-00001200"), 1200);
  for (const char* name : {"step-1200", "step-", "step-0000120x", "step--0000012", "latest", ".tmp-step-00001200"})
    EXPECT_EQ(parse_step_name(name), std::nullopt) << name;
}

}  // namespace
}  // namespace lockstep::checkpoint
