// Fields of a candidate by name, and the values that a search tries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/plan/search/search.h"

namespace lockstep::plan {

struct WholeField {
  std::string_view name{};
  int Candidate::* value = nullptr;
};
const std::vector<WholeField>& whole_fields();  // degrees and sizes

// Ascending. Of a number above 0.
std::vector<int> divisors(int64_t number);

// What is fixed of a field; nothing where it is free.
std::optional<int> fixed_whole(const Fixed& fixed, std::string_view name);
std::optional<bool> fixed_switch(const Fixed& fixed, std::string_view name);
std::optional<config::Recompute> fixed_recompute(const Fixed& fixed);
std::optional<config::ScheduleKind> fixed_schedule(const Fixed& fixed);

// `candidate` with the fields that are fixed.
Candidate with_fixed(Candidate candidate, const Fixed& fixed);

// Of some layers weight gradients are computed apart from those of inputs, later.
inline bool weights_apart(config::ScheduleKind kind) {
  return kind == config::ScheduleKind::kZbH1 || kind == config::ScheduleKind::kZbH2 || config::v_shaped(kind);
}
inline int64_t ranks_of(const Candidate& candidate) {
  return int64_t{candidate.tp} * candidate.pp * candidate.cp * candidate.dp;
}
inline int64_t ranks_of_stage(const Candidate& candidate) { return int64_t{candidate.tp} * candidate.cp * candidate.dp; }

}  // namespace lockstep::plan
