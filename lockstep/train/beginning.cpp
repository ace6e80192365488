#include "lockstep/train/beginning.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/branches.h"
#include "lockstep/checkpoint/directory.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using From = Beginning::From;

fs::path canonical_place(const fs::path& path) {
  const fs::path whole = fs::weakly_canonical(fs::absolute(path));
  return whole.has_filename() ? whole : whole.parent_path();
}

[[noreturn]] void no_checkpoint(const std::string& path) {
  throw CheckpointError({.code = "LS1310",
                         .what = cat("no checkpoint in ", path),
                         .way_out = "checkpoint.resume is \"auto\", \"none\", RUN/checkpoints or one step of it"});
}

void require_checkpoint(const std::string& resume) {
  const bool there = checkpoint::step_of(resume) ? fs::exists(resume) : !checkpoint::list_steps(resume).empty();
  if (!there) no_checkpoint(resume);
}

// checkpoint.resume names a step of the run itself.
Beginning back_to(const RunDirectory& directory, const std::string& resume, int64_t step) {
  if (checkpoint::went_back_to(directory.checkpoints()) != step) {
    require_checkpoint(resume);
    return {.from = From::kBack};
  }
  return {.from = From::kOwn,
          .note = cat("the run has gone back to step ", step, " before, and goes on from there; to go back once more, remove ",
                      (directory.checkpoints() / checkpoint::kWentBackName).string())};
}

}  // namespace

bool names_a_place(const std::string& resume) { return resume != "auto" && resume != "none"; }

bool same_place(const fs::path& a, const fs::path& b) { return canonical_place(a) == canonical_place(b); }

Beginning beginning_of(const RunDirectory& directory, const std::string& resume) {
  const bool has_own = !checkpoint::list_steps(directory.checkpoints()).empty();
  if (resume == "auto") return {.from = has_own ? From::kOwn : From::kNothing};
  if (has_own && names_a_place(resume)) {
    if (same_place(resume, directory.checkpoints())) return {.from = From::kOwn};
    const auto step = checkpoint::step_of(resume);
    if (step && same_place(canonical_place(resume).parent_path(), directory.checkpoints()))
      return back_to(directory, resume, *step);
  }
  if (has_own)
    return {.from = From::kOwn,
            .note = cat("checkpoint.resume = \"", resume, "\" says where a run begins; this one has checkpoints of its own and ",
                        "goes on from them (another run.name begins anew)")};
  if (resume == "none") return {};
  require_checkpoint(resume);
  return {.from = From::kElsewhere};
}

}  // namespace lockstep::train
