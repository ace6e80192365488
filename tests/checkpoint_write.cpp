// The other half of checkpoint_dcp_test.py.
//   checkpoint_write FOLDER          writes a checkpoint saved by four ranks, and one file of many dtypes; element i of
//   a tensor
//                                    (row-major) is first + i
//   checkpoint_write --read FOLDER   one line for each *.safetensors file in it: "NAME refused", or "NAME" and its
//   tensors as
//                                    NAME:DTYPE:BEGIN:END
//   checkpoint_write --zero FOLDER SHARDS TP
//                                    for checkpoint_fsdp_test.py: a step that SHARDS x TP ranks save which share out a model
//   checkpoint_write --import DIR CHECKPOINTS RANKS fp32|bf16
//                                    the step that RANKS ranks save after each has read its pieces of a Hugging Face
//                                    directory
//   checkpoint_write --time DIR fp32|bf16
//                                    seconds that one rank takes to read the directory
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string_view>

#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/hf_import.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/safetensors_writer.h"
#include "lockstep/checkpoint/save.h"
#include "lockstep/checkpoint/test_shards.h"
#include "lockstep/mesh/placement.h"
#include "support/run_ranks.h"

namespace lockstep {
namespace {

using engine::StateKind;
using engine::StateTensor;
namespace fs = std::filesystem;
constexpr int kRanks = 4;

at::Tensor numbers(int64_t first, std::vector<int64_t> shape) {
  int64_t size = 1;
  for (const int64_t s : shape) size *= s;
  return at::arange(first, first + size).to(at::kFloat).reshape(shape);
}

StateTensor replicated(const std::string& name, StateKind kind, const at::Tensor& value, int rank) {
  return {.name = name,
          .kind = kind,
          .global_shape = value.sizes().vec(),
          .offset = std::vector<int64_t>(value.dim(), 0),
          .local = value,
          .replica = rank,
          .num_replicas = kRanks};
}

// Cut in two along both dims, unevenly: ranks 0..3 hold the four boxes.
StateTensor boxed(const std::string& name, StateKind kind, const at::Tensor& value, int rank) {
  const auto rows = mesh::shard_range(value.size(0), 2, rank / 2),
             columns = mesh::shard_range(value.size(1), 2, rank % 2);
  return {.name = name,
          .kind = kind,
          .global_shape = value.sizes().vec(),
          .offset = {rows.begin, columns.begin},
          .local = value.narrow(0, rows.begin, rows.size()).narrow(1, columns.begin, columns.size())};
}

std::vector<StateTensor> state_of(int rank) {
  return {replicated("embed.weight", StateKind::kParameter, numbers(0, {10, 6}), rank),
          boxed("mlp.weight", StateKind::kParameter, numbers(0, {5, 7}).to(at::kBFloat16), rank),
          replicated("norm.weight", StateKind::kParameter, numbers(7, {3}), rank),  // fewer rows than ranks
          replicated("scale", StateKind::kParameter, numbers(9, {}), rank),
          boxed("mlp.weight", StateKind::kMaster, numbers(1000, {5, 7}), rank),
          replicated("embed.weight", StateKind{"exp_avg"}, numbers(2000, {10, 6}), rank),
          boxed("mlp.weight", StateKind{"exp_avg_sq"}, numbers(3000, {5, 7}), rank)};
}

void write_checkpoint(const fs::path& folder) {
  testing::run_ranks(kRanks, [&](comm::World& world) {
    const auto communicator = world.communicator({0, 1, 2, 3}, "world");
    const auto state = state_of(world.rank());
    const checkpoint::TrainState progress{.step = 12, .version = "0.1.0", .world_size = kRanks};
    checkpoint::save(
        {.directory = folder / "checkpoints", .state = state, .train_state = progress, .world = *communicator});
  });
}

void write_dtypes(const fs::path& folder) {
  std::vector<checkpoint::NamedTensor> tensors;
  for (const at::ScalarType type :
       {at::kByte, at::kChar, at::kBool, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat,
        at::kDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kComplexFloat})
    tensors.push_back({std::string("t.") + at::toString(type), numbers(0, {2, 3}).to(type)});
  tensors.push_back({"scalar", numbers(5, {})});
  tensors.push_back({"a \"quoted\" n\xc3\xa4me", numbers(0, {4})});
  tensors.push_back({"empty", numbers(0, {0, 3})});
  checkpoint::write_safetensors(folder / "dtypes.safetensors", tensors, {{"format", "pt"}});
}

// A small model over shards x tp ranks. Elements of parameter i are 10000 i, 10000 i + 1, ...; those of its moments are a
// million and two millions more. Says "NAME ROWS [COLUMNS]" of each.
void write_zero(const fs::path& folder, int shards, int tp) {
  const arch::ModelConfig model{.family = arch::Family::kLlama, .layers = 1, .hidden = 24, .heads = 4, .kv_heads = 2,
                                .head_size = 6, .ffn = 40, .vocab_size = 61, .max_seq_len = 16, .tied = false};
  const checkpoint::Sharding layout{.zero = 3, .shard = shards, .tp = tp};
  const auto table = arch::param_table(model);
  std::map<std::string, int64_t> rows;
  for (const arch::ParamSpec& spec : table) {
    rows.emplace(spec.name, std::ssize(rows));
    std::printf("%s", spec.name.c_str());
    for (const int64_t size : spec.shape) std::printf(" %lld", static_cast<long long>(size));
    std::puts("");
  }
  testing::run_ranks(layout.ranks(), [&](comm::World& world) {
    std::vector<int> all;
    for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
    const auto communicator = world.communicator(all, "world");
    const auto state = checkpoint::sharded_state(model, layout, world.rank());
    for (const StateTensor& tensor : state) {
      const int64_t moment = tensor.kind == StateKind::kParameter ? 0 : tensor.kind == StateKind{"exp_avg"} ? 1 : 2;
      at::Tensor values = numbers(10000 * rows.at(tensor.name) + 1000000 * moment, tensor.global_shape);
      for (size_t dim = 0; dim < tensor.offset.size(); ++dim)
        values = values.narrow(static_cast<int64_t>(dim), tensor.offset[dim], tensor.local.size(static_cast<int64_t>(dim)));
      tensor.local.copy_(values);
    }
    const checkpoint::TrainState progress{.step = 12, .version = "0.1.0", .world_size = world.size()};
    checkpoint::save(
        {.directory = folder / "checkpoints", .state = state, .train_state = progress, .world = *communicator});
  });
}

void read_files(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string line = entry.path().filename().string();
    try {
      const checkpoint::SafetensorsFile file(entry.path());
      for (const checkpoint::SafetensorsEntry& tensor : file.header().entries)
        line += cat(" ", tensor.name, ":", tensor.dtype, ":", tensor.begin, ":", tensor.end);
    } catch (const DataError&) {
      line += " refused";
    }
    std::puts(line.c_str());
  }
}

// Matrices are cut by rows and by columns in turn, vectors are replicated.
std::vector<StateTensor> pieces_of(const arch::ModelConfig& model, int ranks, int rank, at::ScalarType dtype) {
  std::vector<StateTensor> state;
  for (const arch::ParamSpec& spec : arch::param_table(model)) {
    const bool matrix = spec.shape.size() == 2;
    StateTensor tensor{.name = spec.name, .global_shape = spec.shape, .offset = std::vector<int64_t>(spec.shape.size(), 0),
                       .local = {}, .replica = matrix ? 0 : rank, .num_replicas = matrix ? 1 : ranks};
    std::vector<int64_t> shape = spec.shape;
    if (matrix) {
      const auto range = mesh::shard_range(shape[state.size() % 2], ranks, rank);
      tensor.offset[state.size() % 2] = range.begin;
      shape[state.size() % 2] = range.size();
    }
    tensor.local = at::zeros(shape, at::TensorOptions().dtype(dtype));
    state.push_back(std::move(tensor));
  }
  return state;
}

at::ScalarType dtype_of(std::string_view name) {
  return name == "bf16" ? at::kBFloat16 : at::kFloat;
}

void import_directory(const fs::path& directory, const fs::path& checkpoints, int ranks, at::ScalarType dtype) {
  const arch::ModelConfig model = arch::load_hf_config(directory).model;
  testing::run_ranks(ranks, [&](comm::World& world) {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
    const auto communicator = world.communicator(all, "world");
    const auto state = pieces_of(model, ranks, world.rank(), dtype);
    checkpoint::import_hf(directory, model, state);
    const checkpoint::TrainState progress{.model = arch::model_json(model), .version = "0.1.0", .world_size = ranks};
    checkpoint::save({.directory = checkpoints, .state = state, .train_state = progress, .world = *communicator});
  });
}

void time_import(const fs::path& directory, at::ScalarType dtype) {
  const arch::ModelConfig model = arch::load_hf_config(directory).model;
  const auto state = pieces_of(model, 1, 0, dtype);
  double bytes = 0;
  for (const StateTensor& tensor : state) bytes += static_cast<double>(tensor.local.nbytes());
  const auto start = std::chrono::steady_clock::now();
  checkpoint::import_hf(directory, model, state);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%.3f s  %.2f GB into memory  %.2f GB/s\n", seconds, bytes * 1e-9, bytes * 1e-9 / seconds);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--read") {
    lockstep::read_files(argv[2]);
    return 0;
  }
  try {
    if (argc == 5 && std::string_view(argv[1]) == "--zero") {
      lockstep::write_zero(argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
      return 0;
    }
    if (argc == 6 && std::string_view(argv[1]) == "--import") {
      lockstep::import_directory(argv[2], argv[3], std::atoi(argv[4]), lockstep::dtype_of(argv[5]));
      return 0;
    }
    if (argc == 4 && std::string_view(argv[1]) == "--time") {
      lockstep::time_import(argv[2], lockstep::dtype_of(argv[3]));
      return 0;
    }
  } catch (const lockstep::Error& error) {
    return std::fprintf(stderr, "%s\n", error.what()), static_cast<int>(error.exit_code());
  }
  if (argc != 2) return std::fprintf(stderr, "usage: checkpoint_write [--read] FOLDER\n"), 2;
  lockstep::write_checkpoint(argv[1]);
  lockstep::write_dtypes(argv[1]);
}
