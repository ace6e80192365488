// What a run tells: every rank in its log; rank 0 on the terminal and in metrics.jsonl as well.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/train/console.h"
#include "lockstep/train/metrics.h"

namespace lockstep::train {

class RunOutput {
 public:
  explicit RunOutput(const std::filesystem::path& log_file) : log_({.file = log_file}) {}
  // On rank 0, once the run directory is there.
  void open(const std::filesystem::path& run_directory, ConsoleOptions options = ConsoleOptions::detect()) {
    console_.emplace(options);
    metrics_.emplace(run_directory);
  }

  Log& log() { return log_; }
  // Both are null on other ranks, and before open().
  Console* console() { return console_ ? &*console_ : nullptr; }
  MetricsWriter* metrics() { return metrics_ ? &*metrics_ : nullptr; }

  void note(const std::string& text) {
    log_.info(text);
    if (console_) console_->note(text);
  }
  void warn(const std::string& text) {
    log_.warn(text);
    if (console_) console_->note(cat("warning: ", text));
  }
  void event(const std::string& event, int64_t step, const OrderedJson& fields) {
    if (metrics_) metrics_->event(event, step, fields);
  }

 private:
  Log log_;
  std::optional<Console> console_;
  std::optional<MetricsWriter> metrics_;
};

}  // namespace lockstep::train
