// The passes of Experts in parts: the calls and kernels of run_experts() and input_gradient(), in their order.
#include <utility>

#include "lockstep/nn/experts.h"
#include "lockstep/nn/permute.h"

namespace lockstep::nn {

// What is on its way, there and back.
class Experts::Parts : public DividedPass {
 public:
  Parts(Experts& of, ExchangePhase phase) : of_(of), phase_(phase) {}

  void leave() override {
    const at::Tensor rows = std::exchange(rows_, {});
    ExpertExchange& exchange = *of_.exchange_;
    coming_ = at_experts_ ? exchange.combine(rows, *plan_, phase_) : exchange.dispatch(rows, *plan_, phase_);
    at_experts_ = !at_experts_;
  }
  // Where there is a shared expert the part that follows waits, behind the half of it that needs nothing that comes.
  void arrive() override {
    if (!of_.shared_) wait();
  }

 protected:
  void wait() {
    if (coming_) rows_ = std::exchange(coming_, {})();
  }

  Experts& of_;
  const ExchangePhase phase_;
  std::shared_ptr<const ExpertExchange::Plan> plan_{};
  at::Tensor rows_;  // [N, D] at the source, [R, D] at the experts; undefined while they travel

 private:
  Pending coming_;
  bool at_experts_ = false;
};

class Experts::ForwardParts : public Experts::Parts {
 public:
  ForwardParts(Experts& of, const at::Tensor& x, Saved* kept, const Sequences& sequences)
      : Parts(of, ExchangePhase::kForward), x_(x), kept_(kept), sequences_(sequences) {
    const Pass pass{.sequences = sequences_};
    own_ = of_.exchange_->take_own(x_, pass.rows());
    routing_ = of_.route(own_, kept_, pass);
    plan_ = of_.exchange_->plan(*routing_);
    rows_ = permute_rows(own_, *routing_);
  }

  void run_experts() override {
    if (of_.shared_) inner_ = of_.shared_->forward_up(x_, shared_saved());
    wait();
    rows_ = of_.multiply_experts(rows_, *plan_, kept_);
  }

  at::Tensor finish() override {
    at::Tensor of_shared;
    if (of_.shared_) of_shared = of_.shared_->forward_down(std::exchange(inner_, {}), shared_saved());
    wait();
    const int64_t rows = Pass{.sequences = sequences_}.rows();
    at::Tensor outputs = std::exchange(rows_, {});
    const at::Tensor own = sum_rows(outputs, *routing_, /*weighted=*/true);
    if (kept_) {
      kept_->x = own_;
      kept_->routing = routing_;
      kept_->plan = plan_;
      kept_->outputs = std::move(outputs);
      kept_->rows = rows;
    }
    outputs.reset();
    at::Tensor y = of_.exchange_->give_all(own, x_, rows, phase_)();
    return of_shared.defined() ? y.add_(of_shared) : y;
  }

 private:
  Branch::Saved* shared_saved() const { return kept_ ? kept_->shared.get() : nullptr; }

  const at::Tensor x_;
  Saved* const kept_;  // null: nothing is kept
  const Sequences sequences_;
  at::Tensor own_, inner_;  // inner_: of the shared expert, between its halves
  std::shared_ptr<const Routing> routing_;
};

class Experts::BackwardParts : public Experts::Parts {
 public:
  BackwardParts(Experts& of, const at::Tensor& dy, Saved& kept)
      : Parts(of, ExchangePhase::kBackward), dy_(dy), kept_(kept), routing_(kept.routing), total_(kept.rows) {
    plan_ = kept_.plan;
    WeightedGradients gradients = sum_rows_backward(of_.exchange_->take_own(dy_, total_), std::exchange(kept_.outputs, {}), *routing_);
    rows_ = std::move(gradients.outputs);
    of_weights_ = std::move(gradients.weights);
  }

  void run_experts() override {
    begun_ = of_.begin_shared_gradient(dy_, kept_);
    of_router_ = of_.backward_router(std::exchange(of_weights_, {}), kept_);
    wait();
    rows_ = of_.backward_experts(rows_, kept_);
    of_.count_loads(kept_);
  }

  at::Tensor finish() override {
    Pending of_shared = of_.end_shared_gradient(std::exchange(begun_, {}), kept_, /*weights_follow=*/false);
    wait();
    const at::Tensor own = sum_rows(std::exchange(rows_, {}), *routing_, /*weighted=*/false, of_router_);
    at::Tensor dx = of_.exchange_->give_all(own, dy_, total_, phase_)();
    return of_shared ? dx.add_(of_shared()) : dx;
  }

 private:
  const at::Tensor dy_;
  Saved& kept_;
  const std::shared_ptr<const Routing> routing_;
  const int64_t total_;  // B S
  at::Tensor of_weights_, of_router_, begun_;  // begun_: the shared expert's gradient, between its halves
};

std::shared_ptr<DividedPass> Experts::begin_forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) {
  return std::make_shared<ForwardParts>(*this, x, static_cast<Saved*>(saved), sequences);
}

std::shared_ptr<DividedPass> Experts::begin_backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  return std::make_shared<BackwardParts>(*this, dy, static_cast<Saved&>(saved));
}

}  // namespace lockstep::nn
