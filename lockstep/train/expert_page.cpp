#include "lockstep/train/expert_page.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/expert_loads.h"
#include "lockstep/plan/drawing.h"

namespace lockstep::train {
namespace {

// In a page without a traced step.
constexpr const char* kOwnPage = "<!-- loads of experts alone -->";

}  // namespace

ExpertPage::ExpertPage(const RunDirectory& directory, const program::Layout& layout, RunOutput& output, bool writes)
    : directory_(directory), layout_(layout), output_(output) {
  if (!writes || layout.load_numbers() == 0) return;
  const std::vector<double> none(static_cast<size_t>(layout.load_numbers()), 0.0);
  std::vector<std::string> names;
  for (const engine::ExpertLoad& load : engine::expert_loads(layout, none)) names.push_back(load.name);
  const bool drops = layout.moe.capacity_factor && layout.model.experts.router != config::Router::kExpertChoice;
  history_.emplace(std::move(names), layout.model.experts.count, drops);
}

void ExpertPage::known(const StepRecord& record, const RunPosition&) {
  if (!history_) return;
  std::vector<double> routed, dropped;
  for (const engine::ExpertLoad& load : engine::expert_loads(layout_, record.result.loads)) {
    routed.insert(routed.end(), load.routed.begin(), load.routed.end());
    dropped.push_back(load.dropped);
  }
  if (!routed.empty()) history_->add(record.step, routed, dropped);
}

void ExpertPage::resume(int64_t step) {
  if (history_) plan::read_loads(directory_.metrics(), step, *history_);
}

void ExpertPage::write() const {
  if (!history_) return;
  const std::string section = plan::expert_section(*history_);
  if (section.empty()) return;
  try {
    const std::filesystem::path page = directory_.report();
    std::error_code none;
    std::string text = std::filesystem::exists(page, none) ? read_file(page) : std::string();
    // A page of this class alone tells of the layout that wrote it; the run may have gone on with another.
    if (text.empty() || text.find(kOwnPage) != std::string::npos)
      text = plan::page_html(directory_.root().filename().string(), layout_, kOwnPage);
    write_file(page, plan::with_section(std::move(text), "experts", section));
  } catch (const Error& error) {
    output_.warn(cat("the load of experts is not drawn: ", error.what()));
  }
}

}  // namespace lockstep::train
