// State spaces as layers that run, and what the ranks of cp and tp bring together of them.
#include <utility>

#include "lockstep/arch/state_space_branch.h"
#include "lockstep/model/parts.h"
#include "lockstep/nn/multiplied_linear.h"
#include "lockstep/nn/state_space.h"
#include "lockstep/parallel/context/piece_exchange.h"
#include "lockstep/parallel/tensor/row_sums.h"

namespace lockstep::model {

std::unique_ptr<nn::PieceExchange> PartsBuilder::piece_exchange(const BranchPlace& place) {
  return context() ? parallel::make_piece_exchange(*context(), place.calls, place.spec.name) : nullptr;
}

std::unique_ptr<nn::RowSums> PartsBuilder::row_sums(const BranchPlace& place, std::string_view name) {
  if (!group()) return nullptr;
  return std::make_unique<parallel::TensorRowSums>(*group(), place.calls.of_part(place.spec.part(name)));
}

// a_log, d and dt_bias are whole on every rank of tp, which uses those of its heads.
std::unique_ptr<nn::Branch> make_state_space(PartsBuilder& parts, const BranchPlace& place) {
  const arch::StateSpaceSizes& sizes = parts.model().state_space;
  const arch::StateSpacePart part(sizes, parts.tensor_size(), parts.tensor_rank());
  const auto of_heads = [&](std::string_view name) {
    nn::Parameter whole = parts.parameter(place, name);
    const auto here = [&](const at::Tensor& x) { return x.defined() ? x.narrow(0, parts.tensor_rank() * part.heads, part.heads) : x; };
    return nn::Parameter{.value = here(whole.value), .grad = here(whole.grad)};
  };
  const arch::Multipliers& by = parts.model().multipliers;
  const int64_t of_groups = part.groups * sizes.state;
  const nn::Parameter weight = part.norm_groups > 0 ? parts.parameter(place, "norm.weight") : nn::Parameter();
  auto norm = std::make_unique<nn::GatedNorm>(weight, part.norm_groups, part.norm_groups > 0 ? sizes.inner() / sizes.norm_groups : 0,
                                              parts.model().norm_eps, part.norm_is_cut ? parts.row_sums(place, "norm") : nullptr, by.state_out);
  return std::make_unique<nn::StateSpace>(
      nn::StateSpace::Shape{.sizes = sizes,
                            .heads = part.heads,
                            .groups = part.groups,
                            .first_group = part.first_group,
                            .read_groups = part.read_groups},
      nn::StateSpace::Parts{
          .in = nn::multiplied(parts.column_linear(place, "in", sizes.projection_bias), {{part.inner(), by.state_in * by.z},
                                                                                         {part.inner(), by.state_in * by.x},
                                                                                         {of_groups, by.state_in * by.b},
                                                                                         {of_groups, by.state_in * by.c},
                                                                                         {part.heads, by.state_in * by.dt}}),
          .convolution = parts.parameter(place, "conv.weight"),
          .convolution_bias = sizes.convolution_bias ? parts.parameter(place, "conv.bias") : nn::Parameter(),
          .dt_bias = of_heads("dt_bias.weight"),
          .a_log = of_heads("a_log.weight"),
          .d = of_heads("d.weight"),
          .norm = std::move(norm),
          .out = parts.row_linear(place, "out", sizes.projection_bias),
          .pieces = parts.piece_exchange(place)});
}

}  // namespace lockstep::model
