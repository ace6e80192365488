#include "lockstep/plan/search/first_tier.h"

#include <algorithm>
#include <limits>

#include "lockstep/plan/search/candidate.h"

namespace lockstep::plan {
namespace {

constexpr size_t kMostMisses = 5, kMissesRemembered = 200;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kWorthIt = 1.05;  // times the fastest: what does not fit and is slower is no miss

bool faster(const Ranked& a, const Ranked& b) { return a.quick.seconds < b.quick.seconds; }

// A mesh with a grid of experts and a micro-batch: what the layers of many candidates have in common.
struct Block {
  Candidate base{};
  double least = 0;    // seconds
  bool rough = true;   // it is QuickTier::least_of_grids
  size_t number = 0;   // equal ones come in their order
  int64_t inner = 0;   // candidates
};

bool later(const Block& a, const Block& b) { return a.least != b.least ? a.least > b.least : a.number > b.number; }

// Blocks that are legal; the others are counted.
class Blocks {
 public:
  Blocks(const Legality& legality, const CandidateSpace& space, int devices, std::map<Reject, int64_t>& rejected)
      : legality_(legality), space_(space), devices_(devices), rejected_(rejected) {}

  std::vector<Block> all() {
    for (const Candidate& mesh : space_.meshes(devices_)) add(mesh);
    return std::move(blocks_);
  }
  int64_t candidates() const { return candidates_; }

 private:
  void add(Candidate mesh) {
    const int64_t inner = space_.inner(mesh);
    const std::vector<int> sizes = space_.micro_batches(mesh);
    const auto grids = space_.expert_grids(mesh);
    candidates_ += std::ssize(sizes) * std::ssize(grids) * inner;
    if (const auto reason = of_mesh(mesh)) {
      rejected_[*reason] += std::ssize(sizes) * std::ssize(grids) * inner;
      return;
    }
    for (const int size : sizes) {
      mesh.micro_batch = size;
      for (const auto& [ep, etp] : grids) {
        mesh.ep = ep;
        mesh.etp = etp;
        std::optional<Reject> reason = legality_.batch(mesh);
        if (!reason) reason = legality_.grid(mesh);
        if (reason) rejected_[*reason] += inner;
        else blocks_.push_back({.base = mesh, .inner = inner});
      }
    }
  }

  std::optional<Reject> of_mesh(const Candidate& mesh) const {
    if (ranks_of(mesh) != devices_) return Reject::kDomain;
    if (const auto reason = legality_.tensor(mesh.tp)) return reason;
    if (const auto reason = legality_.sequence(mesh.tp, mesh.cp)) return reason;
    // With fewer stages it would be none of layers.
    return legality_.stages(mesh.pp, config::ScheduleKind::kOneFOneB, 1);
  }

  const Legality& legality_;
  const CandidateSpace& space_;
  const int devices_;
  std::map<Reject, int64_t>& rejected_;
  std::vector<Block> blocks_;
  int64_t candidates_ = 0;
};

class Ranking {
 public:
  Ranking(QuickTier& tier, const CandidateSpace& space, const FirstTierOptions& options) : tier_(tier), space_(space), options_(options) {}

  FirstTier rank() {
    Blocks all(tier_.legality(), space_, options_.devices, result_.rejected);
    std::vector<Block> blocks = all.all();
    result_.candidates = all.candidates();
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].number = i;
      blocks[i].least = tier_.least_of_grids(blocks[i].base);
    }
    std::ranges::make_heap(blocks, later);  // the one of the least time in front
    while (!blocks.empty() && blocks.front().least < cutoff()) {
      std::ranges::pop_heap(blocks, later);
      Block& block = blocks.back();
      if (block.rough) {
        block.rough = false;
        block.least = tier_.least_seconds(block.base);
        std::ranges::push_heap(blocks, later);
        continue;
      }
      look_at(block);
      blocks.pop_back();
    }
    for (const Block& block : blocks) result_.rejected[Reject::kSlower] += block.inner;
    std::ranges::stable_sort(result_.best, faster);
    std::erase_if(result_.misses, [&](const Ranked& miss) {
      return !result_.best.empty() && miss.quick.seconds >= kWorthIt * result_.best.front().quick.seconds;
    });
    if (result_.misses.size() > kMostMisses) result_.misses.resize(kMostMisses);
    return std::move(result_);
  }

 private:
  double cutoff() const {
    const bool full = result_.best.size() >= options_.keep;
    return full ? result_.best.front().quick.seconds : kNever;  // a heap: the slowest
  }

  void look_at(const Block& block) {
    Candidate candidate = block.base;
    of_block_.clear();
    least_missed_ = kNever;
    const std::vector<CandidateSpace::Sharing> sharings = space_.sharings(candidate);
    for (const CandidateSpace::Order& order : space_.orders(candidate.pp)) {
      candidate.schedule = order.schedule;
      candidate.virtual_stages = order.virtual_stages;
      for (const config::Recompute recompute : space_.recomputes()) {
        candidate.recompute = recompute;
        least_ = least_of_order(block, candidate);
        for (const CandidateSpace::Sharing& sharing : sharings) {
          candidate.zero = sharing.zero;
          candidate.dp_replicate = sharing.replicate;
          judge(candidate);
        }
      }
    }
    for (const Ranked& one : of_block_) keep(one);
  }

  // The block's, and where that may be among the best what recomputing adds. Sums of another order differ by some 1e-16.
  double least_of_order(const Block& block, const Candidate& candidate) {
    constexpr double kRounding = 1e-9;
    const double fill = least_fill(candidate, static_cast<double>(tier_.legality().microbatches(candidate)));
    const double least = (1 - kRounding) * fill * block.least;
    return least >= limit() ? least : (1 - kRounding) * tier_.least_of_order(candidate);
  }

  // From here on a candidate is not among the best of its block or of all.
  double limit() const { return of_block_.size() < kOfBlock ? cutoff() : std::min(cutoff(), of_block_.back().quick.seconds); }

  // On the device, and where it does not fit there with the optimizer on the host.
  void judge(Candidate candidate) {
    bool fits = false;
    for (const bool offload : space_.offloads()) {
      candidate.offload_optimizer = offload;
      if (fits) {
        ++result_.rejected[Reject::kSlower];
        continue;
      }
      if (const auto reason = tier_.legality().of(candidate)) {
        ++result_.rejected[*reason];
        continue;
      }
      fits = estimate(candidate);
    }
  }

  // Whether it is known to fit, or too slow to be asked.
  bool estimate(const Candidate& candidate) {
    const double limit = this->limit();
    const auto slower = [&] {
      ++result_.rejected[Reject::kSlower];
      return true;
    };
    if (least_ >= limit) return slower();
    ++result_.estimated;
    Ranked one{.candidate = candidate, .quick = {.seconds = tier_.seconds(candidate, limit)}};
    if (one.quick.seconds >= limit) return slower();
    // What needs more than the device has, and more than another of its block, is no miss whatever it needs.
    const QuickMemory memory = tier_.memory(candidate, options_.memory > 0 ? std::max(options_.memory, least_missed_) : kNever);
    one.quick.memory = tier_.reserved(memory.device);
    const auto there = [](double needed, double room) { return room <= 0 || needed <= room; };
    if (!there(one.quick.memory, options_.memory) || !there(memory.host, options_.host)) {
      ++result_.rejected[Reject::kMemory];
      if (there(memory.host, options_.host) && one.quick.memory < least_missed_) {
        least_missed_ = one.quick.memory;
        miss(one);
      }
      return false;
    }
    of_block_.insert(std::ranges::upper_bound(of_block_, one, faster), one);
    if (of_block_.size() > kOfBlock) {
      of_block_.pop_back();
      ++result_.rejected[Reject::kSlower];
    }
    return true;
  }

  void keep(const Ranked& one) {
    if (one.quick.seconds >= cutoff()) {
      ++result_.rejected[Reject::kSlower];
      return;
    }
    result_.best.push_back(one);
    std::ranges::push_heap(result_.best, faster);
    if (result_.best.size() <= options_.keep) return;
    std::ranges::pop_heap(result_.best, faster);
    result_.best.pop_back();
    ++result_.rejected[Reject::kSlower];
  }

  // One of each mesh.
  void miss(const Ranked& one) {
    std::vector<Ranked>& misses = result_.misses;
    const auto smaller = [](const Ranked& a, const Ranked& b) { return a.quick.memory < b.quick.memory; };
    if (misses.size() >= kMissesRemembered && !smaller(one, misses.back())) return;
    const auto same_mesh = [&](const Ranked& other) {
      const Candidate &a = one.candidate, &b = other.candidate;
      return a.tp == b.tp && a.pp == b.pp && a.cp == b.cp && a.ep == b.ep && a.etp == b.etp;
    };
    if (const auto found = std::ranges::find_if(misses, same_mesh); found != misses.end()) {
      if (!smaller(one, *found)) return;
      misses.erase(found);
    }
    misses.insert(std::ranges::upper_bound(misses, one, smaller), one);
    if (misses.size() > kMissesRemembered) misses.pop_back();
  }

  QuickTier& tier_;
  const CandidateSpace& space_;
  const FirstTierOptions& options_;
  FirstTier result_;
  std::vector<Ranked> of_block_;   // fastest first
  double least_ = 0;              // seconds, of an order and a choice of recomputing
  double least_missed_ = kNever;  // bytes: of the block's candidates that do not fit
};

}  // namespace

FirstTier first_tier(QuickTier& tier, const CandidateSpace& space, const FirstTierOptions& options) { return Ranking(tier, space, options).rank(); }

std::optional<Candidate> any_legal(const Legality& legality, const CandidateSpace& space, int devices, std::map<Reject, int64_t>& rejected) {
  for (const Block& block : Blocks(legality, space, devices, rejected).all())
    for (const CandidateSpace::Order& order : space.orders(block.base.pp))
      for (const CandidateSpace::Sharing& sharing : space.sharings(block.base)) {
        Candidate candidate = block.base;
        candidate.schedule = order.schedule;
        candidate.virtual_stages = order.virtual_stages;
        candidate.zero = sharing.zero;
        candidate.dp_replicate = sharing.replicate;
        const std::optional<Reject> reason = legality.of(candidate);
        if (!reason) return candidate;
        ++rejected[*reason];
      }
  return std::nullopt;
}

}  // namespace lockstep::plan
