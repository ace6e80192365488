#include "lockstep/checkpoint/hf_inspect.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>

#include "lockstep/arch/hf_config.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/checkpoint/hf_model.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunk = int64_t{1} << 20;  // elements looked at together

// Elements that are not finite.
int64_t count_bad(const HfModel& model, const std::string& name, const Sizes& shape) {
  const int64_t columns = shape.size() == 2 ? shape[1] : 1;
  const int64_t rows = std::max<int64_t>(1, kChunk / columns);
  int64_t bad = 0;
  for (int64_t row = 0; row < shape[0]; row += rows) {
    Box box{Sizes(shape.size(), 0), shape};
    box.offset[0] = row;
    box.shape[0] = std::min(rows, shape[0] - row);
    const at::Tensor values = at::empty(box.shape);
    model.read(name, box, values);
    bad += values.numel() - at::isfinite(values).sum().item<int64_t>();
  }
  return bad;
}

void look_at_values(const HfModel& model, HfReport* report) {
  for (const auto& [name, source] : model.parameters()) {
    const int64_t bad = count_bad(model, name, source.shape);
    if (bad > 0)
      report->problems.push_back(cat(source.stored.entry->name, " (our ", name, "): ", bad, " of ", volume(source.shape),
                                     " values are not finite"));
  }
  report->read_values = true;
}

}  // namespace

HfReport inspect_hf(const fs::path& directory, bool values) {
  HfReport report{.path = directory};
  try {
    const HfDirectory files(directory);
    for (const auto& [name, file] : files.files()) {
      report.files[name] = file.size();
      report.bytes += file.size();
    }
    for (const auto& [name, stored] : files.tensors()) ++report.tensors[std::string(stored.entry->dtype)];
    const arch::HfConfig config = arch::load_hf_config(directory);
    report.model = arch::describe(config.model);
    report.notes = config.notes;
    const HfModel model(directory, config.model);
    for (const auto& [name, source] : model.parameters()) report.parameters += volume(source.shape);
    if (values) look_at_values(model, &report);
  } catch (const Error& error) {
    report.problems.push_back(error.message().what);
  }
  return report;
}

std::string report_text(const HfReport& report) {
  std::string text = cat(report.path.string(), report.good() ? "  a Hugging Face model\n" : "  NOT GOOD\n");
  const auto line = [&text](std::string_view name, const std::string& value) {
    text += cat("  ", pad_right(name, 10), "  ", value, "\n");
  };
  for (const std::string& problem : report.problems) line("problem", problem);
  if (!report.model.empty()) line("model", report.model);
  for (const std::string& note : report.notes) line("note", note);
  if (report.files.empty()) return text;
  std::vector<std::string> counts;
  for (const auto& [dtype, count] : report.tensors) counts.push_back(cat(count, " ", dtype));
  line("tensors", cat(join(counts, ", "), "; ", format_count(static_cast<double>(report.parameters)), " parameters",
                      report.read_values && report.good() ? ", every value finite" : ""));
  line("files", cat(report.files.size(), ", ", format_bytes(static_cast<double>(report.bytes))));
  for (const auto& [name, size] : report.files)
    text += cat("    ", pad_left(format_bytes(static_cast<double>(size)), 10), "  ", name, "\n");
  return text;
}

OrderedJson report_json(const HfReport& report) {
  OrderedJson files = OrderedJson::object();
  for (const auto& [name, size] : report.files) files[name] = size;
  return {{"path", report.path.string()},
          {"good", report.good()},
          {"problems", report.problems},
          {"notes", report.notes},
          {"model", report.model},
          {"parameters", report.parameters},
          {"tensors", report.tensors},
          {"read_values", report.read_values},
          {"bytes", report.bytes},
          {"files", std::move(files)}};
}

}  // namespace lockstep::checkpoint
