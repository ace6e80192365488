// All candidates by closed form: the fastest that fit, how many each reason rejected, and which missed by little.
#pragma once

#include <map>
#include <vector>

#include "lockstep/plan/search/quick_estimate.h"
#include "lockstep/plan/search/space.h"

namespace lockstep::plan {

struct Ranked {
  Candidate candidate{};
  QuickEstimate quick{};
};

struct FirstTier {
  std::vector<Ranked> best{};                // fastest first; of one mesh and micro-batch at most kOfBlock
  std::map<Reject, int64_t> rejected{};
  std::vector<Ranked> misses{};              // too large, the smallest first, and hardly slower than the best
  int64_t candidates = 0;
  int64_t estimated = 0;                     // one by one; a bound rejected the others together
};
inline constexpr size_t kOfBlock = 2;

struct FirstTierOptions {
  int devices = 1;
  double memory = 0;  // bytes that a device has; 0: nobody says
  double host = 0;    // bytes that a rank's share of the host has; likewise
  size_t keep = 64;
};
// Best first: meshes and micro-batches in the order of a time that none of their candidates is below (QuickTier::least_seconds), until that
// is beyond what is kept. A function of its arguments; `tier` remembers.
FirstTier first_tier(QuickTier& tier, const CandidateSpace& space, const FirstTierOptions& options);

// The first candidate on so many devices that the job can run; nothing where there is none, with why in `rejected`.
std::optional<Candidate> any_legal(const Legality& legality, const CandidateSpace& space, int devices, std::map<Reject, int64_t>& rejected);

}  // namespace lockstep::plan
