#include "lockstep/comm/mpi_job.h"

#include <unistd.h>

#include <fstream>

#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/comm/mpi_letters.h"
#include "lockstep/comm/process.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kMailTag = 0;
constexpr milliseconds kTick{20};        // between two looks at the mail
constexpr milliseconds kQuickTick{2};    // while somebody waits for an answer
constexpr milliseconds kPatience{1000};  // for answers, and for letters to leave
constexpr milliseconds kAfterYou{500};   // for a rank that failed to end first: mpirun reports whoever ends first

// Processes of one value see each other's process ids: the same boot of a machine, the same namespace.
uint64_t host_hash() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char space[64] = {};
  if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = '\0';
  return hash64(cat(boot, " ", space));
}

}  // namespace

void MpiJob::start(const Deadlines& deadlines) {
  deadline_ = deadlines.peers;
  std::promise<bool> promise;
  std::future<bool> ready = promise.get_future();
  // The thread holds the job: one that MPI never lets go is left behind with what it uses.
  keeper_ = std::thread([self = shared_from_this(), promise = std::move(promise)]() mutable {
    self->keep(std::move(promise));
  });
  if (ready.wait_for(deadlines.joining) != std::future_status::ready) {
    keeper_.detach();
    throw PeerLostError(
        {.code = "LS3002",
         .what = cat("MPI_Init has waited ",
                     format_duration(std::chrono::duration<double>(deadlines.joining).count()), " for all ranks to come"),
         .way_out = "the logs of the other ranks may say why; train.join_timeout is how long a rank waits"});
  }
  bool multiple = false;
  std::string problem;
  try {
    multiple = ready.get();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (multiple) return;
  keeper_.join();
  if (problem.empty()) problem = cat(api_->library(), " does not offer MPI_THREAD_MULTIPLE");
  throw EnvironmentError({.code = "LS3030",
                          .what = cat("MPI does not start: ", problem),
                          .way_out = "start the ranks with the mpirun of the MPI library that Lockstep was built with, one "
                                     "with support for threads"});
}

void MpiJob::keep(std::promise<bool> ready) {
  try {
    const bool multiple = api_->init();
    rank_ = api_->rank();
    processes_ = api_->gather({.host = host_hash(), .pid = getpid()});
    last_sign_.assign(processes_.size(), Clock::now());
    ready.set_value(multiple);
    if (!multiple) return;
  } catch (...) {
    return ready.set_exception(std::current_exception());
  }
  try {
    for (;;) {
      handle_mail();
      std::unique_lock lock(mutex_);
      if (ending_ != Ending::kNone) break;
      const int questions = asking_;
      changed_.wait_for(lock, questions ? kQuickTick : kTick,
                        [&] { return ending_ != Ending::kNone || asking_ > questions; });
    }
    if (ending_ == Ending::kTogether) end_together();
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    failure_ = error.what();
    disturbed_ = true;
    changed_.notify_all();
  }
  ended_.set_value();
}

void MpiJob::end_together() {
  const MpiLetter question;
  MpiRequest barrier = api_->start_barrier();
  Clock::time_point asked = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    last_sign_.assign(processes_.size(), asked);
  }
  while (!api_->test(barrier)) {
    handle_mail();
    if (disturbed_ || somebody_is_lost()) return;
    // Another rank may have much to do at its end: it is asked for a sign of life.
    if (Clock::now() - asked > deadline_ / 4) {
      asked = Clock::now();
      for (int rank = 0; rank < size(); ++rank)
        if (rank != rank_) post(rank, question);
    }
    std::this_thread::sleep_for(kQuickTick);
  }
  handle_mail();
  all_left_.set_value();
  api_->finalize();
}

bool MpiJob::somebody_is_lost() const {
  const std::lock_guard lock(mutex_);
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    if (Clock::now() - last_sign_[static_cast<size_t>(rank)] > deadline_ || has_died(rank)) return true;
  }
  return false;
}

void MpiJob::end(bool together) {
  const std::optional<Abort> abort = aborted();
  const auto limit = Clock::now() + kAfterYou;
  while (abort && abort->rank != rank_ && !has_died(abort->rank) && Clock::now() < limit)
    std::this_thread::sleep_for(milliseconds(5));
  {
    const std::lock_guard lock(mutex_);
    ending_ = together && kept_.empty() && !disturbed_ ? Ending::kTogether : Ending::kAlone;
    changed_.notify_all();
  }
  // The keeper waits for the other ranks as long as they live; MPI_Finalize, which comes after, has a deadline.
  std::future<void> all_left = all_left_.get_future(), ended = ended_.get_future();
  const auto is_ready = [](std::future<void>& future, milliseconds time) {
    return future.wait_for(time) == std::future_status::ready;
  };
  while (!is_ready(ended, kTick))
    if (is_ready(all_left, milliseconds(0)) && !is_ready(ended, deadline_)) return keeper_.detach();
  keeper_.join();
}

void MpiJob::handle_mail() {
  while (const std::optional<MpiApi::Arrived> arrived = api_->take(kMailTag)) handle(*arrived);
  deliver();
}

void MpiJob::handle(const MpiApi::Arrived& arrived) {
  const std::optional<MpiLetter> letter = MpiLetter::read(arrived.bytes);
  if (!letter) return;
  std::unique_lock lock(mutex_);
  last_sign_[static_cast<size_t>(arrived.from)] = Clock::now();
  switch (letter->kind) {
    case MpiLetter::Kind::kAbort:
      if (!abort_) abort_ = {.rank = arrived.from, .reason = letter->text};
      disturbed_ = true;
      break;
    case MpiLetter::Kind::kClosed:
      closed_[letter->group][arrived.from] = letter->status;
      break;
    case MpiLetter::Kind::kAsk: {
      MpiLetter answer = *letter;
      answer.kind = MpiLetter::Kind::kAnswer;
      answer.status = own_status(letter->group);
      lock.unlock();
      return post(arrived.from, answer);
    }
    case MpiLetter::Kind::kAnswer:
      if (letter->question == question_) answers_[arrived.from] = letter->status;
      break;
  }
  changed_.notify_all();
}

MpiMember::Status MpiJob::own_status(uint64_t key) const {
  const auto group = groups_.find(key);
  MpiMember::Status status = group == groups_.end() ? MpiMember::Status{} : group->second->status();
  std::vector<GroupWait> waits;
  for (const auto& [of, member] : groups_) waits.push_back(member->wait(of));
  status.kept_by = kept_by(waits, key).value_or(GroupWait{});
  return status;
}

void MpiJob::post(int rank, const MpiLetter& letter) {
  const std::lock_guard lock(mutex_);
  letters_.push_back({.bytes = letter.bytes(), .request = {}});
  Outgoing& last = letters_.back();
  last.request = api_->start_send(rank, kMailTag, std::as_bytes(std::span(last.bytes)));
}

bool MpiJob::deliver() {
  const std::lock_guard lock(mutex_);
  std::erase_if(letters_, [this](Outgoing& letter) { return api_->test(letter.request); });
  return letters_.empty();
}

std::shared_ptr<MpiMember> MpiJob::open_group(uint64_t key) {
  const std::lock_guard lock(mutex_);
  return groups_[key] = std::make_shared<MpiMember>();
}

void MpiJob::close_group(uint64_t key, const std::vector<int>& peers) {
  MpiLetter farewell;
  farewell.kind = MpiLetter::Kind::kClosed;
  farewell.group = key;
  {
    const std::lock_guard lock(mutex_);
    farewell.status = groups_.at(key)->status();
  }
  forget_group(key);
  if (disturbed_) return;
  try {
    for (const int peer : peers)
      if (peer != rank_) post(peer, farewell);
  } catch (const std::exception&) {
    // A courtesy: peers that wait for this rank notice at their deadline too.
  }
}

void MpiJob::forget_group(uint64_t key) {
  const std::lock_guard lock(mutex_);
  groups_.erase(key);
  closed_.erase(key);
}

std::map<int, MpiMember::Status> MpiJob::ask(uint64_t key, const std::vector<int>& ranks) {
  const std::lock_guard one_at_a_time(asking_mutex_);
  std::unique_lock lock(mutex_);
  answers_.clear();
  MpiLetter question;
  question.group = key;
  question.question = ++question_;
  size_t expected = 0;
  lock.unlock();
  for (const int rank : ranks) {
    if (rank == rank_ || has_died(rank)) continue;
    post(rank, question);
    ++expected;
  }
  lock.lock();
  ++asking_;
  changed_.notify_all();
  changed_.wait_for(lock, kPatience, [&] { return answers_.size() == expected || !failure_.empty(); });
  --asking_;
  return answers_;
}

std::optional<MpiMember::Status> MpiJob::closed(uint64_t key, int rank) const {
  const std::lock_guard lock(mutex_);
  const auto group = closed_.find(key);
  if (group == closed_.end()) return std::nullopt;
  const auto member = group->second.find(rank);
  return member == group->second.end() ? std::nullopt : std::optional(member->second);
}

bool MpiJob::has_died(int rank) const {
  const MpiProcess& own = processes_[static_cast<size_t>(rank_)];
  const MpiProcess& other = processes_[static_cast<size_t>(rank)];
  return rank != rank_ && own.host == other.host && process_ended(static_cast<pid_t>(other.pid));
}

void MpiJob::abort(const std::string& reason) {
  MpiLetter notice;
  notice.kind = MpiLetter::Kind::kAbort;
  notice.text = reason;
  {
    const std::lock_guard lock(mutex_);
    if (abort_) return;  // the first reason is the one that counts
    abort_ = {.rank = rank_, .reason = reason};
    disturbed_ = true;
    changed_.notify_all();
  }
  try {
    for (int rank = 0; rank < size(); ++rank)
      if (rank != rank_) post(rank, notice);
    const auto limit = Clock::now() + kPatience;
    while (!deliver() && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  } catch (const std::exception&) {
    // MPI cannot tell them any more; they notice that this rank has ended.
  }
}

std::optional<MpiJob::Abort> MpiJob::aborted() const {
  const std::lock_guard lock(mutex_);
  return abort_;
}

std::string MpiJob::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void MpiJob::keep_for_good(std::shared_ptr<void> memory) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(memory));
}

}  // namespace lockstep::comm
