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

// This replica's rows of the local piece; a scalar is one row. Nothing where there are fewer rows than replicas before
// it.
std::optional<StateTensor> share_of(const StateTensor& state) {
  const bool scalar = state.local.dim() == 0;
  LOCKSTEP_CHECK(lies_in({state.offset, state.local.sizes().vec()}, state.global_shape) || state.local.numel() == 0,
                 state.name, " at ", shape_text(state.offset), " of ", shape_text(state.global_shape));
  const auto rows = mesh::shard_range(scalar ? 1 : state.local.size(0), state.num_replicas, state.replica);
  if (rows.size() == 0 || state.local.numel() == 0) return std::nullopt;
  StateTensor share = state;
  share.replica = 0;
  share.num_replicas = 1;
  if (!scalar) {
    share.offset[0] += rows.begin;
    share.local = state.local.narrow(0, rows.begin, rows.size());
  }
  return share;
}

// The i-th part of each tensor goes to the i-th file.
std::vector<std::vector<StateTensor>> parts_by_file(const std::vector<StateTensor>& share, bool parameters) {
  std::vector<std::vector<StateTensor>> files;
  std::map<std::string, size_t> seen;
  for (const StateTensor& part : share) {
    if ((part.kind == StateKind::kParameter) != parameters) continue;
    const size_t file = seen[saved_name(part)]++;
    if (file == files.size()) files.emplace_back();
    files[file].push_back(part);
  }
  return files;
}

std::string shard_name(int rank, size_t file, size_t num_files) {
  char name[96];
  std::snprintf(name, sizeof name, "shard-%05d-model-%05zu-of-%05zu.safetensors", rank + 1, file + 1, num_files);
  return name;
}

WrittenFile write_parts(const std::filesystem::path& path, const std::vector<StateTensor>& parts, const Progress& progress) {
  std::vector<NamedTensor> tensors;
  Json sharding = Json::object();
  for (const StateTensor& part : parts) {
    tensors.push_back({saved_name(part), part.local});
    sharding[saved_name(part)]["saved_offsets"] = part.offset;
  }
  return write_safetensors(path, tensors, {{"format", "pt"}, {"DCP_SHARDING_INFO", sharding.dump()}}, progress);
}

}  // namespace

std::string saved_name(const StateTensor& tensor) {
  return tensor.kind == StateKind::kParameter ? tensor.name : cat("optim.", tensor.kind.key, ".", tensor.name);
}

std::vector<StateTensor> own_share(std::span<const StateTensor> state) {
  std::vector<StateTensor> share;
  for (const StateTensor& tensor : state) {
    if (auto part = share_of(tensor)) share.push_back(std::move(*part));
  }
  return share;
}

Manifest write_shards(const std::filesystem::path& folder, std::span<const StateTensor> state, int rank,
                      const Progress& progress) {
  const std::vector<StateTensor> share = own_share(state);
  Manifest manifest;
  for (const bool parameters : {true, false}) {
    const std::string sub = parameters ? "model" : "optim";
    const auto files = parts_by_file(share, parameters);
    for (size_t i = 0; i < files.size(); ++i) {
      const std::string path = sub + "/" + shard_name(rank, i, files.size());
      std::filesystem::create_directories(folder / sub);
      const WrittenFile written = write_parts(folder / path, files[i], progress);
      manifest.files[path] = {.size = written.size, .hash = written.header_hash};
      for (const StateTensor& part : files[i]) {
        const std::string name = saved_name(part);
        ManifestTensor& tensor = manifest.tensors[name];
        tensor.dtype = dtype_of(part.local.scalar_type()).name;
        tensor.shape = part.global_shape;
        tensor.pieces.push_back(
            {.file = path, .box = {part.offset, part.local.sizes().vec()}, .hash = written.tensor_hashes.at(name)});
      }
    }
  }
  return manifest;
}

}  // namespace lockstep::checkpoint
