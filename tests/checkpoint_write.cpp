// The other half of checkpoint_dcp_test.py.
//   checkpoint_write FOLDER          writes a checkpoint saved by four ranks, and one file of many dtypes; element i of
//   a tensor
//                                    (row-major) is first + i
//   checkpoint_write --read FOLDER   one line for each *.safetensors file in it: "NAME refused", or "NAME" and its
//   tensors as
//                                    NAME:DTYPE:BEGIN:END
#include <ATen/ops/arange.h>

#include <cstdio>
#include <filesystem>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/safetensors_writer.h"
#include "lockstep/checkpoint/save.h"
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
          replicated("embed.weight", StateKind::kExpAvg, numbers(2000, {10, 6}), rank),
          boxed("mlp.weight", StateKind::kExpAvgSq, numbers(3000, {5, 7}), rank)};
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

void read_files(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string line = entry.path().filename().string();
    try {
      const checkpoint::SafetensorsFile file(entry.path());
      for (const auto& [name, tensor] : file.header().entries)
        line += cat(" ", name, ":", tensor.dtype, ":", tensor.begin, ":", tensor.end);
    } catch (const DataError&) {
      line += " refused";
    }
    std::puts(line.c_str());
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--read") {
    lockstep::read_files(argv[2]);
    return 0;
  }
  if (argc != 2) return std::fprintf(stderr, "usage: checkpoint_write [--read] FOLDER\n"), 2;
  lockstep::write_checkpoint(argv[1]);
  lockstep::write_dtypes(argv[1]);
}
