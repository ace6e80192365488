// How far predictions are from what was measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/plan/evidence/measured_run.h"
#include "lockstep/plan/evidence/prediction.h"

namespace lockstep::plan {

// A row that was predicted and measured.
struct Compared {
  Prediction prediction{};
  double measured = 0;                  // seconds
  std::optional<MeasuredRun::Memory> memory{};  // measured
  double error() const { return prediction.seconds / measured - 1; }
  bool in_band() const { return measured >= prediction.low && measured <= prediction.high; }
  double memory_error() const { return prediction.memory.of(memory->kind) / memory->bytes - 1; }  // where it was measured
  // Share of the measured step that runs of another batch or number of devices compare by.
  double device_seconds_per_token() const { return measured * prediction.gpus / prediction.tokens; }
};

// Errors are predicted / measured - 1.
struct ErrorStats {
  int rows = 0;
  double median = 0, p90 = 0;  // of their absolute values
  double bias = 0;             // their median
  double in_band = 0;          // share of rows whose measured step lies in the band
};
// Kendall's tau over pairs of runs whose measured times differ by more than 5 % of the smaller: agreeing less disagreeing over all of them. Times
// are seconds of a device per token. 0 pairs: tau means nothing.
struct OrderStats {
  double tau = 0;
  int64_t pairs = 0;
};
struct MemoryStats {
  MemoryKind kind = MemoryKind::kReserved;
  int rows = 0;
  double median = 0, worst = 0, bias = 0;
};

struct EvidenceGroup {
  std::string name{};
  ErrorStats step{};
  OrderStats order{};        // of pairs of one source
  OrderStats same_model{};   // of those pairs the ones of one model on one kind of device
  std::vector<MemoryStats> memory{};  // by kind, those that were measured
};

struct Evidence {
  std::vector<Compared> rows{};  // in the order of the file
  EvidenceGroup all{};           // of tiers A and B, and of rows without a tier; so are sources and devices
  std::vector<EvidenceGroup> sources{}, tiers{}, devices{};  // by name; tiers: of all rows
  std::vector<Prediction> refused{};  // with their reasons
  int unmeasured = 0;                 // rows that were predicted, but have no step time to compare with
};

// Row by row, by place. InternalError where the lists differ in length.
Evidence compare(const std::vector<Prediction>& predictions, const std::vector<MeasuredRun>& measured);

ErrorStats error_stats(const std::vector<const Compared*>& rows);
OrderStats order_stats(const std::vector<const Compared*>& rows, bool same_model);
std::vector<MemoryStats> memory_stats(const std::vector<const Compared*>& rows);
// By linear interpolation between neighbours; 0.5 is the median. InternalError without values.
double quantile(std::vector<double> values, double share);

}  // namespace lockstep::plan
