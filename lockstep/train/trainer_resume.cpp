// How a run comes to its directory: alone, from the right checkpoint, with words about what is different now.
#include <algorithm>
#include <cstdio>

#include "lockstep/arch/model_config.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/agree.h"
#include "lockstep/checkpoint/branches.h"
#include "lockstep/checkpoint/publish.h"
#include "lockstep/engine/expert_loads.h"
#include "lockstep/train/beginning.h"
#include "lockstep/train/changes.h"
#include "lockstep/train/start.h"
#include "lockstep/train/trainer.h"

namespace lockstep::train {

namespace fs = std::filesystem;
using From = Beginning::From;

// The others wait look by look, so that no deadline passes while rank 0 watches the lock of another host.
void Trainer::take_lock() {
  bool told = false;
  while (checkpoint::broadcast_number(groups_.world(), program::call_id(program::Purpose::kRunLock), is_rank0() && lock_->try_take() ? 1 : 0) == 0) {
    const std::string watched = lock_->watched();
    if (watched.empty() || std::exchange(told, true)) continue;
    output_.log().info(watched);
    std::fputs((watched + "\n").c_str(), stderr);  // nothing has been printed yet
  }
  if (!is_rank0()) return;
  if (!lock_->took_over().empty()) output_.warn(cat("took the run directory over from ", lock_->took_over()));
  checkpoint::finish_going_back(directory_.checkpoints());
  checkpoint::repair_steps(directory_.checkpoints());
}

bool Trainer::resume() {
  const std::string& wanted = config().checkpoint.resume;
  Beginning beginning;
  if (is_rank0()) beginning = beginning_of(directory_, wanted);
  const auto from = static_cast<From>(
      checkpoint::broadcast_number(groups_.world(), program::call_id(program::Purpose::kBeginning), static_cast<int64_t>(beginning.from)));
  if (from == From::kNothing) return false;
  if (!beginning.note.empty()) output_.note(beginning.note);
  const std::vector<engine::StateTensor> state = executor_.store().state();
  const auto resumed = checkpoint::resume({.path = from == From::kOwn ? directory_.checkpoints() : fs::path(wanted),
                                           .state = state,
                                           .world = groups_.world(),
                                           .model = arch::model_json(job_.layout.model)});
  if (!resumed)
    throw CheckpointError({.code = "LS1310", .what = cat("the checkpoints of ", directory_.root().string(), " are gone")});
  for (const checkpoint::StepFolder& folder : resumed->skipped)
    output_.note(cat("skipped ", folder.path.string(), ": ", folder.problem));
  // Who names a step wants it on other data too.
  if (from == From::kOwn && !(names_a_place(wanted) && same_place(wanted, resumed->path))) check_resumed(*resumed);
  executor_.store().loaded();
  const checkpoint::TrainState& saved = resumed->train_state;
  if (job_.layout.moe.scope == config::MoeScope::kLastStep)
    executor_.set_last_loads(engine::loads_of_json(job_.layout, saved.last_loads));
  position_ = {.step = saved.step, .consumed_samples = saved.consumed_samples, .consumed_tokens = saved.consumed_tokens};
  resumed_at_ = saved.step;
  if (from != From::kElsewhere) expert_page_.resume(saved.step);
  output_.note(cat("resumed from ", resumed->path.string(), " at step ", saved.step));
  output_.event("resume", saved.step, {{"path", resumed->path.string()}});
  if (from != From::kElsewhere) leave_branch(saved.step, from == From::kBack);
  report_changes(saved);
  return true;
}

// Later steps are of another branch from now on: those that the run goes back behind, or that are damaged.
void Trainer::leave_branch(int64_t step, bool asked) {
  checkpoint::SetAside set_aside;
  const std::string problem = checkpoint::agree(groups_.world(), program::call_id(program::Purpose::kSetAside), [&] {
    if (!is_rank0()) return;
    set_aside = asked ? checkpoint::go_back(directory_.checkpoints(), step)
                      : checkpoint::set_aside_after(directory_.checkpoints(), step);
  });
  if (!problem.empty())
    throw CheckpointError({.code = "LS1306",
                           .what = cat("the steps after ", step, " could not be set aside: ", problem),
                           .way_out = "nothing is lost; see whether the run directory can be written"});
  if (set_aside.steps.empty()) return;
  const std::string names = join(set_aside.steps, ", ");
  output_.note(cat("set aside in ", (directory_.checkpoints() / set_aside.folder).string(), ": ", names,
                   "; they are kept, and never chosen"));
  output_.event("set_aside", step, {{"folder", set_aside.folder}, {"steps", names}});
}

// A run that goes on must go on in the same data: sample i would otherwise be another one.
void Trainer::check_resumed(const checkpoint::Resumed& resumed) {
  const Json now = data_identity(config(), job_.layout, sampler_);
  if (resumed.train_state.data != now)
    throw CheckpointError({.code = "LS1311",
                           .what = cat(resumed.path.string(), " was trained on other data or in another order\n  checkpoint ",
                                       resumed.train_state.data.dump(), "\n  now        ", now.dump()),
                           .way_out = cat("give the run another name, or start from these weights on the new data with "
                                          "--checkpoint.resume=", resumed.path.string())});
}

void Trainer::report_changes(const checkpoint::TrainState& saved) {
  const auto found = changes(saved, train_state(), config());
  if (found.empty()) return;
  output_.note(cat("changed since the checkpoint of step ", saved.step));
  size_t width = 0;
  OrderedJson fields = OrderedJson::object();
  for (const auto& [name, change] : found) width = std::max(width, name.size());
  for (const auto& [name, change] : found) {
    output_.note(cat("  ", pad_right(name, width), "  ", change));
    fields[name] = change;
  }
  output_.event("changed", saved.step, fields);
}

}  // namespace lockstep::train
