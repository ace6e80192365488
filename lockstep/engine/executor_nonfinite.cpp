// A step that is left out, or the last one: whose gradient was not finite.
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/executor.h"

namespace lockstep::engine {

// Row of the whole model's table; -1 for none. Ranks of a pipeline have tables of their own.
int64_t Executor::row_of_model(int param) const {
  if (param < 0) return -1;
  const std::string& name = store_.table()[static_cast<size_t>(param)].name;
  const std::vector<arch::ParamSpec> table = arch::param_table(options_.layout.model);
  const auto found = std::find_if(table.begin(), table.end(), [&](const arch::ParamSpec& spec) { return spec.name == name; });
  return found - table.begin();
}

void Executor::nonfinite(int64_t step) {
  groups_.world().confirm();  // what an aborted call leaves behind is no gradient, and nobody's fault
  // Reductions in flight end first: every rank comes here in the same step.
  gradients_.abandon();
  flowing_.clear();
  saved_.clear();
  inputs_.clear();
  if (activations_) activations_->clear();
  if (store_.host() && store_.host()->disk()) store_.host()->disk()->abandon();
  comm::Communicator& replica = groups_.replica();
  const at::Tensor mine = at::tensor({row_of_model(gradients_.watch().first())}, at::kLong);
  const at::Tensor all = at::empty({replica.size()}, at::kLong);
  replica.all_gather(mine, all, {.site = "non-finite"}).wait();
  const int64_t* params = all.const_data_ptr<int64_t>();
  std::vector<std::string> culprits;
  const std::vector<arch::ParamSpec> table = arch::param_table(options_.layout.model);
  for (int rank = 0; rank < replica.size(); ++rank)
    if (params[rank] >= 0) culprits.push_back(cat("rank ", rank, ": ", table[static_cast<size_t>(params[rank])].name));
  const std::string whose = culprits.empty() ? "their norm overflows" : join(culprits, ", ");
  if (options_.skip_nonfinite) {
    result_.skipped = whose;
    return;
  }
  throw DivergedError({.code = "LS5001",
                       .what = cat("step ", step, ": a gradient is not finite (", whose, ")"),
                       .way_out = "the weights are those before this step; try a lower optimizer.lr, a longer warm-up, "
                                  "precision = \"fp32\", or train.nonfinite = \"skip\""});
}

}  // namespace lockstep::engine
