#include "lockstep/nn/expert_exchange.h"

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/nn/branch.h"

namespace lockstep::nn {
namespace {

Pending ready(at::Tensor tensor) {
  return [tensor = std::move(tensor)] { return tensor; };
}

}  // namespace

mesh::Range ExpertExchange::own_rows(int64_t rows) const { return {.begin = 0, .end = rows}; }

mesh::Range ExpertExchange::own_columns(int64_t width) const { return {.begin = 0, .end = width}; }

at::Tensor ExpertExchange::take_own(const at::Tensor& x, int64_t rows) { return x.view({rows, x.size(-1)}); }

Pending ExpertExchange::give_all(const at::Tensor& own, const at::Tensor& like, int64_t, ExchangePhase) {
  return ready(own.view(like.sizes()));
}

at::Tensor ExpertExchange::gather_scores(const at::Tensor& own, const Sequences& sequences) {
  const int64_t length = sequences.places ? sequences.places->length : sequences.length;
  LOCKSTEP_CHECK_EQ(own.size(0), sequences.count * length, "rows of ", sequences.count, " whole sequences");
  return own;
}

ExpertExchange::Plan::~Plan() = default;

std::unique_ptr<ExpertExchange::Plan> ExpertExchange::plan(const Routing& own) {
  auto plan = std::make_unique<Plan>();
  plan->here = own.counts;
  return plan;
}

Pending ExpertExchange::dispatch(const at::Tensor& sorted, const Plan&, ExchangePhase) { return ready(sorted); }

Pending ExpertExchange::combine(const at::Tensor& here, const Plan&, ExchangePhase) { return ready(here); }

Pending ExpertExchange::spread(const at::Tensor&, const Plan&, ExchangePhase) { throw InternalError("no tokens are spread"); }

Pending ExpertExchange::collect(const at::Tensor&, const Plan&, ExchangePhase) { throw InternalError("no tokens are spread"); }

at::Tensor ExpertExchange::return_weights(const at::Tensor&, const Plan&) { throw InternalError("no tokens are spread"); }

}  // namespace lockstep::nn
