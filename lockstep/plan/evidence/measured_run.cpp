#include "lockstep/plan/evidence/measured_run.h"

#include <array>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/units.h"
#include "lockstep/plan/evidence/row_fields.h"

namespace lockstep::plan {
namespace {

struct Unit {
  std::string_view end{};
  double bytes = 1;
};
constexpr std::array<Unit, 5> kUnits = {
    {{"_gib", static_cast<double>(kGiB)}, {"_gb", 1e9}, {"_mib", static_cast<double>(kMiB)}, {"_mb", 1e6}, {"_bytes", 1}}};

MemoryKind kind_of(std::string_view key) {
  const auto has = [&](std::string_view word) { return key.find(word) != std::string_view::npos; };
  if (has("alloc")) return MemoryKind::kAllocated;
  return has("device") || has("smi") ? MemoryKind::kDevice : MemoryKind::kReserved;
}

std::optional<MeasuredRun::Memory> memory_of(const RowFields& measured) {
  for (const auto& [key, value] : measured.json().items()) {
    if (key.find("mem") == std::string::npos || !value.is_number()) continue;
    for (const Unit& unit : kUnits)
      if (key.ends_with(unit.end)) return MeasuredRun::Memory{.kind = kind_of(key), .bytes = value.get<double>() * unit.bytes};
  }
  return std::nullopt;
}

MeasuredRun measured_of(const RowFields& row, const std::string& name) {
  MeasuredRun run{.id = row.text("id").value_or(name)};
  if (const auto derived = row.object("derived")) run.seconds = derived->number("step_time_s");
  if (const auto measured = row.object("measured")) {
    if (!run.seconds) run.seconds = measured->number("step_time_s");
    run.memory = memory_of(*measured);
  }
  if (run.seconds && !(*run.seconds > 0)) run.seconds.reset();
  return run;
}

}  // namespace

std::string_view memory_kind_name(MemoryKind kind) {
  constexpr std::array<std::string_view, 3> kNames = {"allocated", "reserved", "device"};
  return kNames.at(static_cast<size_t>(kind));
}

std::vector<MeasuredRun> parse_measured_runs(std::string_view text, std::string_view origin) {
  const Json file = parse_file_of_runs(text, origin);
  const Json& rows = rows_of(file, origin);
  std::vector<MeasuredRun> result;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string name = row_name(rows[i], i);
    try {
      result.push_back(measured_of(RowFields(rows[i], std::string(origin), name), name));
    } catch (const DataError&) {  // nothing of it compares: predictions say what is wrong with a row
      result.push_back({.id = name});
    }
  }
  return result;
}

std::vector<MeasuredRun> read_measured_runs(const std::filesystem::path& path) { return parse_measured_runs(read_file(path), path.string()); }

}  // namespace lockstep::plan
