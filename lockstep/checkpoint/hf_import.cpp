#include "lockstep/checkpoint/hf_import.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/checkpoint/hf_model.h"

namespace lockstep::checkpoint {

void import_hf(const std::filesystem::path& directory, const arch::ModelConfig& model,
               std::span<const engine::StateTensor> state) {
  using engine::StateKind;
  const HfModel source(directory, model);
  std::vector<const engine::StateTensor*> wanted;
  for (const engine::StateTensor& tensor : state) {
    if (tensor.kind != StateKind::kParameter && tensor.kind != StateKind::kMaster) continue;
    const auto found = source.parameters().find(tensor.name);
    LOCKSTEP_CHECK(found != source.parameters().end() && found->second.shape == tensor.global_shape, tensor.name, " ",
                   shape_text(tensor.global_shape), " is not of the model to import");
    wanted.push_back(&tensor);
  }
  // In the order of the files, so that the disk reads ahead of us.
  const auto place = [&](const engine::StateTensor* tensor) {
    const HfDirectory::Stored& stored = source.parameters().at(tensor->name).stored;
    return std::pair(stored.file->path(), stored.entry->begin);
  };
  std::stable_sort(wanted.begin(), wanted.end(), [&](const auto* a, const auto* b) { return place(a) < place(b); });
  for (const engine::StateTensor* tensor : wanted)
    source.read(tensor->name, {tensor->offset, tensor->local.sizes().vec()}, tensor->local);
}

}  // namespace lockstep::checkpoint
