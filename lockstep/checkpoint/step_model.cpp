#include "lockstep/checkpoint/step_model.h"

#include <algorithm>
#include <set>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/arch/params.h"
#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/box_reader.h"
#include "lockstep/checkpoint/directory.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* kMaster = "optim.master.";

// LS1307 where the saved parameters are not those of the model that the step names: one that is missing, has another shape or is
// surplus.
void require_parameters(const std::filesystem::path& folder, const Manifest& manifest, const arch::ModelConfig& model) {
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError({.code = "LS1307", .what = cat(folder.string(), " says that its model is ", arch::describe(model), ", but ", what)});
  };
  std::set<std::string> known;
  for (const arch::ParamSpec& spec : arch::param_table(model)) {
    known.insert(spec.name);
    const auto found = manifest.tensors.find(spec.name);
    if (found == manifest.tensors.end()) refuse(cat("lacks ", spec.name, " ", shape_text(spec.shape)));
    if (found->second.shape != spec.shape)
      refuse(cat("has ", shape_text(found->second.shape), " for ", spec.name, " ", shape_text(spec.shape)));
  }
  for (const auto& [name, tensor] : manifest.tensors)
    if (!name.starts_with("optim.") && !known.contains(name)) refuse(cat("also has ", name, " ", shape_text(tensor.shape)));
}

}  // namespace

std::filesystem::path find_step(const std::filesystem::path& run_or_step) {
  namespace fs = std::filesystem;
  if (fs::exists(run_or_step / kManifestName) || step_of(run_or_step)) return run_or_step;
  const fs::path inner = run_or_step / "checkpoints";
  const fs::path directory = fs::is_directory(inner) ? inner : run_or_step;
  const Latest latest = find_latest(directory);
  if (latest.path) return *latest.path;
  std::string what = cat("no whole checkpoint in ", directory.string());
  for (const StepFolder& step : latest.skipped) what += cat("\n  ", step.path.filename().string(), ": ", step.problem);
  throw CheckpointError({.code = "LS1310", .what = what, .way_out = "name a run directory, its checkpoints/ or one step-* folder"});
}

StepModel::StepModel(const std::filesystem::path& step_folder)
    : path_(step_folder),
      manifest_(read_manifest(step_folder)),
      train_state_(read_train_state(step_folder, manifest_)),
      model_(arch::parse_model_json(train_state_.model, step_folder.string())) {
  require_parameters(path_, manifest_, model_);
}

const ManifestTensor& StepModel::find(const std::string& name, bool precise) const {
  return manifest_.tensors.at(saved_name(name, precise));
}

std::string StepModel::saved_name(const std::string& name, bool precise) const {
  return precise && manifest_.tensors.contains(kMaster + name) ? kMaster + name : name;
}

void StepModel::read(const std::string& name, const at::Tensor& to, bool precise) {
  const ManifestTensor& tensor = find(name, precise);
  const Destination all{{Sizes(tensor.shape.size(), 0), tensor.shape}, to};
  for (const Piece& piece : tensor.pieces) reader(piece.file).read(saved_name(name, precise), piece, {all});
}

bool StepModel::is_in_runs(const std::string& name, bool precise) const {
  const ManifestTensor& tensor = find(name, precise);
  return std::all_of(tensor.pieces.begin(), tensor.pieces.end(), [&](const Piece& piece) {
    // Dims of one index, then one that is cut, then whole ones.
    const Sizes& shape = piece.box.shape;
    size_t dim = 0;
    while (dim < shape.size() && shape[dim] == 1) ++dim;
    return dim >= shape.size() || std::equal(tensor.shape.begin() + static_cast<int64_t>(dim) + 1, tensor.shape.end(),
                                             shape.begin() + static_cast<int64_t>(dim) + 1);
  });
}

void StepModel::scan(const std::string& name, const std::function<void(const at::Tensor&)>& take, bool precise) {
  LOCKSTEP_CHECK(is_in_runs(name, precise), name, " is saved in pieces of its columns");
  std::vector<const Piece*> pieces;
  for (const Piece& piece : find(name, precise).pieces) pieces.push_back(&piece);
  std::sort(pieces.begin(), pieces.end(), [](const auto* a, const auto* b) { return a->box.offset < b->box.offset; });
  for (const Piece* piece : pieces)
    reader(piece->file).scan(saved_name(name, precise), *piece,
                             [&](const Box&, const at::Tensor& rows) { take(rows); });
}

void StepModel::read_box(const std::string& name, const Box& box, const at::Tensor& to) {
  for (const Piece& piece : manifest_.tensors.at(name).pieces) {
    const auto common = intersect(piece.box, box);
    if (!common) continue;
    const SafetensorsFile& file = reader(piece.file).file();
    Box inside = *common;
    at::Tensor part = to;
    for (size_t dim = 0; dim < inside.offset.size(); ++dim) {
      part = part.narrow(static_cast<int64_t>(dim), common->offset[dim] - box.offset[dim], common->shape[dim]);
      inside.offset[dim] -= piece.box.offset[dim];
    }
    checkpoint::read_box(file, reader(piece.file).entry(name, piece), inside, false, part);
  }
}

const PieceReader& StepModel::reader(const std::string& file) {
  const auto found = readers_.find(file);
  if (found != readers_.end()) return found->second;
  return readers_.emplace(file, PieceReader(path_, file, manifest_)).first->second;
}

}  // namespace lockstep::checkpoint
