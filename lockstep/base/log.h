// Log of one rank: a file, and for rank 0 the terminal as well. Passed to what logs; there is no global logger.
// Lower rooms do not log: they return values or throw.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

namespace lockstep {

struct LogOptions {
  std::filesystem::path file{};  // empty = no file
  bool to_stderr = false;        // people read stderr; stdout is for data
};

// Thread-safe. Lines carry time and level in the file; stderr gets the bare text.
class Log {
 public:
  explicit Log(const LogOptions& options);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void info(std::string_view text);
  void warn(std::string_view text);
  void error(std::string_view text);
  void flush();

 private:
  struct Sinks;
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace lockstep
