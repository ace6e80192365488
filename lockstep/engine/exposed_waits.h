// What a rank waited for: the exposed part of communication and copies, by what it was.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "lockstep/comm/communicator.h"

namespace lockstep::engine {

class ExposedWaits {
 public:
  void wait(comm::Work& work, const std::string& what) {
    work.wait();
    add(what, work.exposed_seconds());
  }
  void add(const std::string& what, double seconds) {
    seconds_[what] += seconds;
    total_ += seconds;
  }
  // Since the last call.
  std::map<std::string, double> take() { return std::exchange(seconds_, {}); }
  // Of all, since the beginning.
  double total() const { return total_; }

 private:
  std::map<std::string, double> seconds_;
  double total_ = 0;
};

}  // namespace lockstep::engine
