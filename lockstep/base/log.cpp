#include "lockstep/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {

struct Log::Sinks {
  std::unique_ptr<spdlog::logger> logger;
};

Log::Log(const LogOptions& options) : sinks_(std::make_unique<Sinks>()) {
  std::vector<spdlog::sink_ptr> sinks;
  if (!options.file.empty()) {
    std::error_code code;
    std::filesystem::create_directories(options.file.parent_path(), code);
    if (code)
      throw EnvironmentError(
          {.code = "LS3101", .what = cat("cannot make ", options.file.parent_path().string(), ": ", code.message())});
    sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file.string()));
    sinks.back()->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
  }
  if (options.to_stderr) {
    sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
    sinks.back()->set_pattern("%v");
  }
  sinks_->logger = std::make_unique<spdlog::logger>("lockstep", sinks.begin(), sinks.end());
  sinks_->logger->flush_on(spdlog::level::warn);
}

Log::~Log() { flush(); }

void Log::info(std::string_view text) { sinks_->logger->info("{}", text); }
void Log::warn(std::string_view text) { sinks_->logger->warn("{}", text); }
void Log::error(std::string_view text) { sinks_->logger->error("{}", text); }
void Log::flush() { sinks_->logger->flush(); }

}  // namespace lockstep
