// The store of ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/rendezvous.h"

namespace lockstep::testing {

class MemoryStore : public comm::Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  bool has(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    return values_.contains(key);
  }
  std::string get(const std::string& key, std::chrono::milliseconds deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline, [&] { return values_.contains(key); }))
      throw PeerLostError({.code = "LS3126", .what = key});
    return values_[key];
  }
  int64_t add(const std::string& key, int64_t amount) override {
    const std::lock_guard lock(mutex_);
    return counters_[key] += amount;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> counters_;
};

}  // namespace lockstep::testing
