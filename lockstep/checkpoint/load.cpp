#include "lockstep/checkpoint/load.h"

#include <map>
#include <set>

#include "lockstep/arch/optimizer.h"
#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/agree.h"
#include "lockstep/checkpoint/piece_reader.h"
#include "lockstep/checkpoint/shard_writer.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using engine::StateKind;
using engine::StateTensor;

constexpr size_t kShown = 5;  // lines of a list of differences

// At most kShown of them, indented, as further lines of a message.
std::string listed(const std::vector<std::string>& lines) {
  std::string text;
  for (size_t i = 0; i < std::min(kShown, lines.size()); ++i) text += "\n  " + lines[i];
  if (lines.size() > kShown) text += cat("   (first ", kShown, " of ", lines.size(), " shown)");
  return text;
}

[[noreturn]] void other_model(const fs::path& folder, const std::string& how, const std::vector<std::string>& lines) {
  throw CheckpointError(
      {.code = "LS1307",
       .what = cat("checkpoint ", folder.string(), " belongs to another model (", how, ")", listed(lines)),
       .way_out = "set the model of the checkpoint in [model], or begin anew: another run.name, no checkpoint.resume"});
}

// Which saved tensor fills this one: the most precise copy of what it stands for.
const ManifestTensor* source_of(const StateTensor& target, const Manifest& manifest, std::string* name) {
  StateTensor master = target, parameter = target;
  master.kind = StateKind::kMaster;
  parameter.kind = StateKind::kParameter;
  std::vector<std::string> names = {saved_name(target)};
  if (target.kind == StateKind::kMaster) names = {saved_name(master), saved_name(parameter)};
  if (target.kind == StateKind::kParameter && target.local.scalar_type() == at::kFloat)
    names = {saved_name(master), saved_name(parameter)};
  for (const std::string& candidate : names) {
    const auto found = manifest.tensors.find(candidate);
    if (found == manifest.tensors.end()) continue;
    *name = candidate;
    return &found->second;
  }
  return nullptr;
}

// States of an optimizer that this one does not have.
bool has_other_slots(const StateTensor& target, const Manifest& manifest) {
  for (const arch::OptimizerSpec& optimizer : arch::optimizer_specs())
    for (const arch::StateSlot& slot : optimizer.slots) {
      StateTensor other = target;
      other.kind = engine::StateKind{slot.name};
      if (other.kind != target.kind && manifest.tensors.contains(saved_name(other))) return true;
    }
  return false;
}

struct PieceJob {
  std::string name;
  const Piece* piece = nullptr;
  std::vector<Destination> destinations{};
};
using Jobs = std::map<std::string, std::map<const Piece*, PieceJob>>;  // by file

// What to read for `state`, or the error that says why this checkpoint cannot give it.
Jobs plan(const fs::path& folder, const Manifest& manifest, std::span<const StateTensor> state) {
  Jobs jobs;
  std::vector<std::string> different, missing;
  bool of_others = false;  // what is missing has states of another optimizer instead
  std::set<std::string> parameters, named;  // a tensor may have several pieces here
  for (const StateTensor& target : state) {
    if (target.kind == StateKind::kParameter) parameters.insert(target.name);
    std::string name;
    const ManifestTensor* source = source_of(target, manifest, &name);
    if (source == nullptr) {
      if (!named.insert(saved_name(target)).second) continue;
      of_others = of_others || (target.kind != StateKind::kParameter && has_other_slots(target, manifest));
      (target.kind == StateKind::kParameter ? different : missing)
          .push_back(cat(saved_name(target), "   not in the checkpoint   config ", shape_text(target.global_shape)));
      continue;
    }
    if (source->shape != target.global_shape) {
      if (target.kind == StateKind::kParameter && named.insert(target.name).second)
        different.push_back(cat(target.name, "   checkpoint ", shape_text(source->shape), "   config ",
                                shape_text(target.global_shape)));
      continue;
    }
    const Box box{target.offset, target.local.sizes().vec()};
    for (const Piece& piece : source->pieces) {
      if (!intersect(piece.box, box)) continue;
      PieceJob& job = jobs[piece.file][&piece];
      job.name = name;
      job.piece = &piece;
      job.destinations.push_back({box, target.local});
    }
  }
  if (!different.empty())
    other_model(folder, cat(different.size(), " of ", parameters.size(), " shapes differ"), different);
  if (!missing.empty())
    throw CheckpointError({.code = "LS1308",
                           .what = cat("checkpoint ", folder.string(), " lacks optimizer state", listed(missing)),
                           .way_out = of_others ? "it has that of another optimizer: set optimizer.kind and optimizer.rules as they were, "
                                                  "or begin anew: another run.name, no checkpoint.resume"
                                                : "it can be used for generation, but not to go on with training"});
  return jobs;
}

TrainState load_into(const fs::path& folder, std::span<const StateTensor> state) {
  const Manifest manifest = read_manifest(folder);
  const TrainState train_state = read_train_state(folder, manifest);
  for (const auto& [file, pieces] : plan(folder, manifest, state)) {
    const PieceReader reader(folder, file, manifest);
    for (const auto& [piece, job] : pieces) reader.read(job.name, *piece, job.destinations);
  }
  return train_state;
}

void compare_models(const fs::path& folder, const Json& wanted, const Json& saved) {
  if (!wanted.is_object()) return;
  if (!saved.is_object()) other_model(folder, "it does not say which", {});
  std::vector<std::string> lines;
  // A setting that one of them does not have counts too: rope scaling is written only where there is some.
  std::set<std::string> keys;
  for (const Json* model : {&wanted, &saved}) {
    for (const auto& item : model->items()) keys.insert(item.key());
  }
  for (const std::string& key : keys) {
    const Json ours = wanted.value(key, Json()), theirs = saved.value(key, Json());
    if (theirs != ours) lines.push_back(cat(key, "   checkpoint ", theirs.dump(), "   config ", ours.dump()));
  }
  if (!lines.empty()) other_model(folder, cat(lines.size(), " of ", keys.size(), " settings differ"), lines);
}

// Whether a worse checkpoint explains the error, so that an older one may do.
bool is_damage(const std::string& code) {
  return code != "LS1307" && code != "LS1308";
}

// One step on all ranks. A problem is "" if it was loaded; an error that no older step would mend is thrown on all
// ranks.
struct Attempt {
  TrainState train_state{};
  std::string problem{};
};
Attempt attempt(const ResumeRequest& request, const fs::path& folder) {
  Attempt result;
  std::optional<Error> mismatch;
  const std::string wrong = agree(request.world, program::call_id(program::Purpose::kCheckpointModel), [&] {
    try {
      const Manifest manifest = read_manifest(folder);
      compare_models(folder, request.model, read_train_state(folder, manifest).model);
      plan(folder, manifest, request.state);
    } catch (const CheckpointError& error) {
      if (is_damage(error.message().code)) return;  // found again below
      mismatch = error;
      throw;
    }
  });
  if (!wrong.empty()) {
    // A rank may hold no piece of what is wrong, and learns it from the others.
    const std::string other_model = agree(request.world, program::call_id(program::Purpose::kCheckpointModel), [&] {
      if (mismatch && mismatch->message().code == "LS1307") throw *mismatch;
    });
    if (mismatch) throw CheckpointError(mismatch->message());
    throw CheckpointError({.code = other_model.empty() ? "LS1308" : "LS1307", .what = wrong});
  }
  result.problem =
      agree(request.world, program::call_id(program::Purpose::kCheckpointLoad), [&] { result.train_state = load_into(folder, request.state); });
  return result;
}

[[noreturn]] void none_whole(const fs::path& path, const std::vector<StepFolder>& skipped) {
  std::vector<std::string> lines;
  for (const StepFolder& step : skipped) lines.push_back(cat(step.path.filename().string(), ": ", step.problem));
  throw CheckpointError(
      {.code = "LS1301",
       .what = cat("no whole checkpoint in ", path.string(), listed(lines)),
       .way_out = "begin anew with another run.name; checkpoint.resume may name a checkpoint to begin from"});
}

}  // namespace

TrainState load(const fs::path& step_folder, std::span<const StateTensor> state) {
  return load_into(step_folder, state);
}

TrainState load_parameters_only(const fs::path& step_folder, std::span<const StateTensor> state) {
  std::vector<StateTensor> parameters;
  std::copy_if(state.begin(), state.end(), std::back_inserter(parameters),
               [](const StateTensor& tensor) { return tensor.kind == StateKind::kParameter; });
  return load_into(step_folder, parameters);
}

std::optional<Resumed> resume(const ResumeRequest& request) {
  std::vector<StepFolder> candidates;
  if (request.world.rank() == 0) {
    candidates = step_of(request.path) ? std::vector<StepFolder>{{.path = request.path}} : list_steps(request.path);
  }
  Resumed resumed;
  const int64_t count = broadcast_number(request.world, program::call_id(program::Purpose::kCheckpointCount), static_cast<int64_t>(candidates.size()));
  for (int64_t i = 0; i < count; ++i) {
    // Rank 0 alone has the list; the others learn the name, and "" stands for the folder that the request names.
    const StepFolder mine = request.world.rank() == 0 ? candidates[static_cast<size_t>(i)] : StepFolder{};
    const bool whole_folder = mine.path == request.path;
    const std::string name = broadcast_text(request.world, program::call_id(program::Purpose::kCheckpointStep), 0,
                                            whole_folder ? "" : mine.path.filename().string());
    const fs::path folder = name.empty() ? request.path : request.path / name;
    Attempt result = attempt(request, folder);
    if (result.problem.empty()) {
      resumed.path = folder;
      resumed.train_state = std::move(result.train_state);
      return resumed;
    }
    resumed.skipped.push_back({.path = folder, .step = parse_step_name(name).value_or(-1), .problem = result.problem});
  }
  if (count == 0) return std::nullopt;
  none_whole(request.path, resumed.skipped);
}

}  // namespace lockstep::checkpoint
