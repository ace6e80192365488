// Rank 0's RunOutput of a test, and what it has written; for the tests of this room.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/train/run_output.h"
#include "lockstep/train/step_policy.h"
#include "support/folders.h"

namespace lockstep::train::testing {

class TestOutput {
 public:
  explicit TestOutput(const std::string& name) : folder_("output-" + name), output_(folder_ / "log") {
    output_.open(folder_.path(), {.stream = terminal_.get()});
  }
  RunOutput& operator*() { return output_; }

  // The lines of metrics.jsonl.
  std::vector<Json> rows() const {
    std::vector<Json> rows;
    for (const std::string& line : split(read_file(folder_ / "metrics.jsonl"), '\n'))
      if (!line.empty()) rows.push_back(parse_json(line, "metrics.jsonl"));
    return rows;
  }
  std::string log() {
    output_.log().flush();
    return read_file(folder_ / "log");
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  support::ScopedFolder folder_;
  std::unique_ptr<std::FILE, Close> terminal_{std::tmpfile()};
  RunOutput output_;
};

// The steps of [1, last] on which the policy acts.
inline std::vector<int64_t> due_steps(const StepPolicy& policy, int64_t last) {
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= last; ++step)
    if (policy.due(step)) steps.push_back(step);
  return steps;
}

}  // namespace lockstep::train::testing
