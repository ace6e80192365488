#include "lockstep/checkpoint/shard_writer.h"

#include <cstdio>

#include "lockstep/base/check.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/dtype.h"
#include "lockstep/checkpoint/safetensors_writer.h"
#include "lockstep/mesh/placement.h"

namespace lockstep::checkpoint {
namespace {

using engine::StateKind;
using engine::StateTensor;

// What this rank writes of one tensor.
struct Part {
  std::string name;
  Sizes global_shape;
  Sizes offset;
  at::Tensor data;
};

// This replica's rows of the local piece; a scalar is one row. Nothing where there are fewer rows than replicas before
// it.
std::optional<Part> part_of(const StateTensor& state) {
  const bool scalar = state.local.dim() == 0;
  LOCKSTEP_CHECK(lies_in({state.offset, state.local.sizes().vec()}, state.global_shape) || state.local.numel() == 0,
                 state.name, " at ", shape_text(state.offset), " of ", shape_text(state.global_shape));
  const auto rows = mesh::shard_range(scalar ? 1 : state.local.size(0), state.num_replicas, state.replica);
  if (rows.size() == 0 || state.local.numel() == 0) return std::nullopt;
  Part part{.name = saved_name(state), .global_shape = state.global_shape, .offset = state.offset, .data = state.local};
  if (!scalar) {
    part.offset[0] += rows.begin;
    part.data = state.local.narrow(0, rows.begin, rows.size());
  }
  return part;
}

// The i-th part of each tensor goes to the i-th file.
std::vector<std::vector<Part>> parts_by_file(std::span<const StateTensor> state, bool parameters) {
  std::vector<std::vector<Part>> files;
  std::map<std::string, size_t> seen;
  for (const StateTensor& tensor : state) {
    if ((tensor.kind == StateKind::kParameter) != parameters) continue;
    auto part = part_of(tensor);
    if (!part) continue;
    const size_t file = seen[part->name]++;
    if (file == files.size()) files.emplace_back();
    files[file].push_back(std::move(*part));
  }
  return files;
}

std::string shard_name(int rank, size_t file, size_t num_files) {
  char name[96];
  std::snprintf(name, sizeof name, "shard-%05d-model-%05zu-of-%05zu.safetensors", rank + 1, file + 1, num_files);
  return name;
}

WrittenFile write_parts(const std::filesystem::path& path, const std::vector<Part>& parts) {
  std::vector<NamedTensor> tensors;
  Json sharding = Json::object();
  for (const Part& part : parts) {
    tensors.push_back({part.name, part.data});
    sharding[part.name]["saved_offsets"] = part.offset;
  }
  return write_safetensors(path, tensors, {{"format", "pt"}, {"DCP_SHARDING_INFO", sharding.dump()}});
}

}  // namespace

std::string saved_name(const StateTensor& tensor) {
  switch (tensor.kind) {
    case StateKind::kParameter:
      return tensor.name;
    case StateKind::kMaster:
      return "optim.master." + tensor.name;
    case StateKind::kExpAvg:
      return "optim.exp_avg." + tensor.name;
    case StateKind::kExpAvgSq:
      return "optim.exp_avg_sq." + tensor.name;
  }
  LOCKSTEP_CHECK(false, "state kind ", static_cast<int>(tensor.kind));
}

Manifest write_shards(const std::filesystem::path& folder, std::span<const StateTensor> state, int rank) {
  Manifest manifest;
  for (const bool parameters : {true, false}) {
    const std::string sub = parameters ? "model" : "optim";
    const auto files = parts_by_file(state, parameters);
    for (size_t i = 0; i < files.size(); ++i) {
      const std::string path = sub + "/" + shard_name(rank, i, files.size());
      std::filesystem::create_directories(folder / sub);
      const WrittenFile written = write_parts(folder / path, files[i]);
      manifest.files[path] = {.size = written.size, .hash = written.header_hash};
      for (const Part& part : files[i]) {
        manifest.tensors[part.name].dtype = dtype_of(part.data.scalar_type()).name;
        manifest.tensors[part.name].shape = part.global_shape;
        manifest.tensors[part.name].pieces.push_back(
            {.file = path, .box = {part.offset, part.data.sizes().vec()}, .hash = written.tensor_hashes.at(part.name)});
      }
    }
  }
  return manifest;
}

}  // namespace lockstep::checkpoint
