#include "lockstep/comm/call_queue.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {

CallQueue::CallQueue(std::unique_ptr<Transport> transport, const CommunicatorOptions& options)
    : transport_(std::move(transport)), options_(options) {
  if (transport_->size() > 1) thread_ = std::thread([this] { work_off(); });
}

CallQueue::~CallQueue() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    if (std::uncaught_exceptions() > exceptions_at_start_) {
      transport_->cancel();
      if (!failure_)
        failure_ = std::make_exception_ptr(
            PeerLostError({.code = "LS3003", .what = "the communicator was closed by an error"}));
    }
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<Work::State> CallQueue::push(Call call) {
  auto state = std::make_shared<Work::State>();
  state->transport = transport_.get();
  const std::lock_guard lock(mutex_);
  entries_.push_back({std::move(call), state});
  changed_.notify_all();
  return state;
}

std::shared_ptr<Work::State> CallQueue::run_here(Call call) {
  const auto began = std::chrono::steady_clock::now();
  Entry entry{std::move(call), std::make_shared<Work::State>()};
  std::unique_lock lock(mutex_);
  transport_->add_awaiting(1);
  ++callers_;
  changed_.wait(lock, [this] { return entries_.empty() && !busy_; });
  --callers_;
  run_entry(entry, lock);
  if (!failure_) transport_->add_awaiting(-1);
  // The progress thread sleeps: waking it for nothing costs as much as a small call.
  if (!entries_.empty() || closing_ || callers_ > 0) changed_.notify_all();
  entry.state->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return entry.state;
}

void CallQueue::wait_for_calls() {
  std::unique_lock lock(mutex_);
  transport_->add_awaiting(1);
  ++callers_;
  changed_.wait(lock, [this] { return entries_.empty() && !busy_; });
  --callers_;
  if (!failure_) transport_->add_awaiting(-1);
}

program::Ledger CallQueue::take_ledger() {
  wait_for_calls();
  const std::lock_guard lock(mutex_);
  return std::exchange(ledger_, {});
}

void CallQueue::work_off() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !busy_ && (!entries_.empty() || closing_); });
    if (entries_.empty()) return;
    Entry entry = std::move(entries_.front());
    entries_.pop_front();
    run_entry(entry, lock);
    changed_.notify_all();
  }
}

void CallQueue::run_entry(Entry& entry, std::unique_lock<std::mutex>& lock) {
  std::exception_ptr problem = failure_;
  if (!problem) {
    busy_ = true;
    lock.unlock();
    try {
      run(entry);
    } catch (...) {
      problem = explained(std::current_exception());
    }
    entry.call.prepare = {};  // lets the tensors go before the waiter goes on
    entry.call.body = {};
    lock.lock();
    busy_ = false;
    if (problem && !failure_) failure_ = problem;
  }
  entry.state->finish(problem);
}

void CallQueue::run(Entry& entry) {
  Call& call = entry.call;
  if (call.prepare) call.prepare();
  const int64_t flight = flights_.enter(call.progress.call, call.payload, entry.state);
  call.progress.inside = true;
  transport_->publish(call.progress);
  Link link(*transport_, call.header, options_.deadline);
  call.body(link);
  call.progress.inside = false;
  transport_->publish(call.progress);
  flights_.leave(flight);
  record(call.key, call.payload, by_world_rank(link.sent()));
}

void CallQueue::record(const program::LedgerKey& key, int64_t payload, const std::map<int, int64_t>& sent) {
  const std::lock_guard lock(mutex_);
  ledger_.add(key, payload, sent);
}

std::exception_ptr CallQueue::explained(std::exception_ptr problem) const {
  try {
    std::rethrow_exception(problem);
  } catch (const PeerLostError& error) {
    Message message = error.message();
    std::string calls = flights_.text(4);
    if (!calls.empty()) calls.pop_back();
    message.what += cat("\n  its last calls on this group:\n  ", join(split(calls, '\n'), "\n  "));
    return std::make_exception_ptr(PeerLostError(message));
  } catch (...) {
    return std::current_exception();
  }
}

std::map<int, int64_t> CallQueue::by_world_rank(const std::vector<int64_t>& sent) const {
  std::map<int, int64_t> result;
  for (size_t peer = 0; peer < sent.size(); ++peer)
    if (sent[peer] > 0) result[options_.ranks[peer]] += sent[peer];
  return result;
}

}  // namespace lockstep::comm
