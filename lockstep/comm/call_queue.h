// The calls of one communicator in flight: a queue, the thread that works it off, and what is recorded of each call.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/flight_ring.h"
#include "lockstep/comm/link.h"
#include "lockstep/comm/work_state.h"

namespace lockstep::comm {

struct Call {
  program::LedgerKey key;
  CallHeader header;
  Progress progress;
  int64_t payload = 0;              // bytes of the full tensor
  std::function<void()> prepare{};  // what is to be done before this rank has entered the call; may be empty
  std::function<void(Link&)> body;  // holds the tensors alive
};

class CallQueue {
 public:
  CallQueue(std::unique_ptr<Transport> transport, const CommunicatorOptions& options);
  ~CallQueue();  // see Communicator
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  const Transport& transport() const { return *transport_; }
  std::shared_ptr<Work::State> push(Call call);
  // On the caller's thread, after the calls in flight; the state is that of a call that is done.
  std::shared_ptr<Work::State> run_here(Call call);
  program::Ledger take_ledger();
  void wait_for_calls();  // in flight
  std::string last_calls() const { return flights_.text(); }

  // For calls that the backend makes itself.
  FlightRing& flights() { return flights_; }
  void record(const program::LedgerKey& key, int64_t payload, const std::map<int, int64_t>& sent);
  std::exception_ptr explained(std::exception_ptr problem) const;  // a lost peer, with the last calls of this rank

 private:
  struct Entry {
    Call call;
    std::shared_ptr<Work::State> state;
  };
  void work_off();
  void run_entry(Entry& entry, std::unique_lock<std::mutex>& lock);  // unlocked while the call runs
  void run(Entry& entry);
  std::map<int, int64_t> by_world_rank(const std::vector<int64_t>& sent) const;

  std::unique_ptr<Transport> transport_;
  CommunicatorOptions options_;
  int exceptions_at_start_ = std::uncaught_exceptions();
  FlightRing flights_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  bool busy_ = false;  // a call runs
  int callers_ = 0;    // that wait for the queue to be empty
  bool closing_ = false;
  std::exception_ptr failure_;  // of the first call that failed: later ones cannot go on
  program::Ledger ledger_;

  std::thread thread_;
};

}  // namespace lockstep::comm
