// What the engine keeps of an optimizer follows from its slots: here of one with three, of different types.
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lockstep/arch/optimizer.h"
#include "lockstep/engine/host_states.h"
#include "lockstep/engine/parameter_store.h"
#include "lockstep/engine/parameter_store.h"
#include "lockstep/engine/test_offload.h"
#include "lockstep/engine/test_training.h"
#include "support/folders.h"

namespace lockstep::engine {
namespace {

using ::testing::ElementsAre;

const arch::OptimizerSpec& three_slots() {
  static const arch::OptimizerSpec spec{.id = "test",
                                        .slots_text = "three slots",
                                        .slots = {{.name = "a", .text = "first slot"},
                                                  {.name = "b", .text = "second slot", .dtype = config::Precision::kBf16},
                                                  {.name = "c", .text = "third slot"}}};
  return spec;
}

// Value, slots, copy.
std::vector<at::Tensor> fields_of(const HostStates& states, size_t unit) {
  return {states.value(unit), states.slot(unit, 0), states.slot(unit, 1), states.slot(unit, 2), states.compute(unit)};
}

// Another number in every field of every unit.
double number(size_t unit, size_t field) { return 1 + static_cast<double>(10 * unit + field); }

void fill(const HostStates& states, size_t unit) {
  const std::vector<at::Tensor> fields = fields_of(states, unit);
  for (size_t i = 0; i < fields.size(); ++i) fields[i].fill_(number(unit, i));
}

void expect_filled(const HostStates& states, size_t unit) {
  const std::vector<at::Tensor> fields = fields_of(states, unit);
  for (size_t i = 0; i < fields.size(); ++i) {
    const bool bf16 = i == 2 || i == 4;
    EXPECT_EQ(fields[i].scalar_type(), bf16 ? at::kBFloat16 : at::kFloat) << i;
    EXPECT_TRUE(fields[i].to(at::kFloat).equal(at::full({32}, number(unit, i), at::kFloat))) << unit << " " << i;
  }
}

TEST(OptimizerSlots, LieSideBySideOnTheHost) {
  const HostStates states(testing::two_units(32), {.slots = testing::slots_of_two(three_slots(), 32), .compute_copies = {true, true}});
  for (const size_t unit : {size_t{0}, size_t{1}}) fill(states, unit);
  for (const size_t unit : {size_t{0}, size_t{1}}) expect_filled(states, unit);
}

TEST(OptimizerSlots, GoToDiskAndComeBack) {
  const support::ScopedFolder folder("optimizer-slots");
  HostStates states(testing::two_units(32), {.slots = testing::slots_of_two(three_slots(), 32),
                                             .compute_copies = {true, true},
                                             .disk_units = {0, 1},
                                             .names = {"embed", "blocks.0"},
                                             .disk_path = folder.path()});
  for (const size_t unit : {size_t{0}, size_t{1}}) {
    states.disk()->open(unit);
    fill(states, unit);
    states.disk()->close(unit);
  }
  for (const size_t unit : {size_t{0}, size_t{1}}) expect_filled(states, unit);  // as memory of the file
  // FETCH and EVICT: what an update reads is 4 + 4 + 2 + 4 bytes an element; the copy goes back with it, made anew.
  for (const size_t unit : {size_t{0}, size_t{1}}) {
    states.disk()->take_totals();
    states.disk()->fetch(unit);
    states.disk()->ready(unit);
    states.compute(unit).fill_(number(unit, 4));
    states.disk()->evict(unit);
    expect_filled(states, unit);
    EXPECT_EQ(states.disk()->take_totals().bytes, 32 * (4 + 4 + 2 + 4) + 32 * (4 + 4 + 2 + 4 + 2));
  }
}

TEST(OptimizerSlots, AreWhatACheckpointSeesAndACopyTakesBack) {
  const program::Layout layout = testing::layout_for({.dp = 1, .precision = config::Precision::kBf16});
  std::vector<arch::ParamSpec> table = layout.param_table(0);
  for (arch::ParamSpec& spec : table) spec.update.optimizer = &three_slots();
  ParameterStore store(table, {.layout = layout});
  std::vector<std::string> kinds;
  std::set<std::string> parameters;
  for (const StateTensor& tensor : store.state()) {
    parameters.insert(tensor.name);
    if (kinds.empty() || kinds.back() != tensor.kind.key) kinds.emplace_back(tensor.kind.key);
    const bool bf16 = tensor.kind == StateKind::kParameter || tensor.kind == StateKind{"b"};
    EXPECT_EQ(tensor.local.scalar_type(), bf16 ? at::kBFloat16 : at::kFloat) << tensor.name;
  }
  EXPECT_THAT(kinds, ElementsAre("", "master", "a", "b", "c"));
  EXPECT_EQ(parameters.size(), store.table().size());

  StateCopy before(store);
  const auto fill_all = [&](double value) {
    for (const StateTensor& tensor : store.state())
      if (tensor.kind != StateKind::kParameter) tensor.local.fill_(value);
  };
  fill_all(3);
  before.take();
  fill_all(5);
  before.restore();
  // Of parameters; padding is not looked at.
  for (const StateTensor& tensor : store.state()) EXPECT_TRUE(tensor.local.eq(3).all().item<bool>()) << tensor.name;
}

}  // namespace
}  // namespace lockstep::engine
