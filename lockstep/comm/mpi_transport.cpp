#include "lockstep/comm/mpi_transport.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kHot{20};                       // of polling without sleep; more would take a core from those who compute
constexpr microseconds kShortSleep{10}, kLongSleep{500};
constexpr milliseconds kLook{50};    // between two looks at a peer's health
constexpr milliseconds kGrace{200};  // for what a peer that is gone has sent before

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

void nothing(std::span<const std::byte>, size_t) {}

Transport::Consumer store_in(std::span<std::byte> bytes) {
  return [bytes](std::span<const std::byte> piece, size_t offset) {
    std::memcpy(bytes.data() + offset, piece.data(), piece.size());
  };
}

}  // namespace

MpiTransport::MpiTransport(std::shared_ptr<MpiJob> job, MpiGroup group)
    : job_(std::move(job)), group_(std::move(group)), member_(job_->open_group(group_.key)) {}

MpiTransport::~MpiTransport() {
  // While an exception unwinds, its reason is still to be told by World::abort: "closed the group" must not come first.
  if (std::uncaught_exceptions() > exceptions_at_start_)
    job_->forget_group(group_.key);
  else
    job_->close_group(group_.key, group_.ranks);
}

void MpiTransport::send(int peer, std::span<const std::byte> bytes, Deadline deadline) {
  exchange(peer, bytes, -1, 0, nothing, deadline);
}
void MpiTransport::recv(int peer, std::span<std::byte> bytes, Deadline deadline) {
  exchange(-1, {}, peer, bytes.size(), store_in(bytes), deadline);
}
void MpiTransport::send_recv(int to, std::span<const std::byte> out, int from, std::span<std::byte> in,
                             Deadline deadline) {
  exchange(to, out, from, in.size(), store_in(in), deadline);
}
void MpiTransport::send_recv(int to, std::span<const std::byte> out, int from, size_t in_size,
                             const Consumer& consume, Deadline deadline) {
  exchange(to, out, from, in_size, consume, deadline);
}

void MpiTransport::publish(const Progress& progress) {
  progress_ = progress;
  member_->publish(progress);
}

void MpiTransport::exchange(int to, std::span<const std::byte> out, int from, size_t in_size, const Consumer& consume,
                            Deadline deadline) {
  if (!pieces_) pieces_ = std::make_shared_for_overwrite<Pieces>();
  Stream outgoing{.member = to, .size = out.size()};
  Stream incoming{.member = from, .size = in_size};
  Wait wait{.began = Clock::now(), .deadline = deadline};
  try {
    for (;;) {
      const bool received = advance_in(incoming, consume);
      const bool sent = advance_out(outgoing, out);
      if (incoming.complete() && outgoing.complete()) break;
      if (!received && !sent) {
        pause(wait, incoming.complete() ? to : from);
      } else if (wait.idle_since != Deadline{}) {
        member_->wait_for(-1);
        wait = {.began = wait.began, .deadline = deadline};
      }
    }
    if (wait.idle_since != Deadline{}) member_->wait_for(-1);
  } catch (const Error&) {
    withdraw(outgoing, incoming);
    throw;
  } catch (const std::runtime_error& error) {  // of MPI: as a rule the connection to the peer is lost
    withdraw(outgoing, incoming);
    throw lost(incoming.complete() ? to : from, wait.began, error.what());
  }
}

// Both return whether anything moved.
bool MpiTransport::advance_out(Stream& stream, std::span<const std::byte> bytes) {
  bool moved = false;
  while (stream.can_start()) {
    const size_t piece = stream.started++;
    const std::span<std::byte> buffer(pieces_->out[piece % kDepth].bytes.data(), stream.bytes(piece));
    std::memcpy(buffer.data(), bytes.data() + stream.offset(piece), buffer.size());
    stream.requests[piece % kDepth] =
        job_->api().start_send(world_rank(stream.member), group_.tags[static_cast<size_t>(stream.member)], buffer);
    moved = true;
  }
  while (stream.done < stream.started && job_->api().test(stream.requests[stream.done % kDepth])) {
    ++stream.done;
    moved = true;
  }
  return moved;
}

bool MpiTransport::advance_in(Stream& stream, const Consumer& consume) {
  while (stream.can_start()) {
    const size_t piece = stream.started++;
    stream.requests[piece % kDepth] =
        job_->api().start_recv(world_rank(stream.member), group_.tags[static_cast<size_t>(stream.member)],
                               {pieces_->in[piece % kDepth].bytes.data(), stream.bytes(piece)});
  }
  if (stream.complete() || !job_->api().test(stream.requests[stream.done % kDepth])) return false;
  const size_t piece = stream.done++;
  consume({pieces_->in[piece % kDepth].bytes.data(), stream.bytes(piece)}, stream.offset(piece));
  return true;
}

void MpiTransport::pause(Wait& wait, int peer) {
  if (cancelled_ || job_->disturbed()) check_stopped();
  const Deadline now = Clock::now();
  if (wait.idle_since == Deadline{}) {
    wait.idle_since = now;
    wait.next_look = now + kLook;
    return;
  }
  const auto idle = now - wait.idle_since;
  if (idle < kHot) {
    sched_yield();
    return;
  }
  member_->wait_for(world_rank(peer));
  if (now >= wait.deadline) throw lost(peer, wait.began);
  if (now >= wait.next_look) look_around(wait, peer, now);
  if (!light_sleep_) {  // of this thread, which runs all calls of the group: by default a sleep takes 50 us longer
    prctl(PR_SET_TIMERSLACK, 1000UL);
    light_sleep_ = true;
  }
  std::this_thread::sleep_for(
      std::clamp(std::chrono::duration_cast<microseconds>(idle / 8), kShortSleep, kLongSleep));
}

void MpiTransport::look_around(Wait& wait, int peer, Deadline now) {
  wait.next_look = now + kLook;
  if (wait.gone_since == Deadline{} && gone(peer)) wait.gone_since = now;
  if (wait.gone_since != Deadline{} && now - wait.gone_since > kGrace) throw lost(peer, wait.began);
}

// After a failure: MPI gives back what it has not begun; for the rest it keeps the buffers.
void MpiTransport::withdraw(Stream& out, Stream& in) {
  try {
    bool pending = false;
    for (Stream* stream : {&out, &in})
      for (MpiRequest& request : stream->requests) {
        if (stream == &in) job_->api().cancel(request);
        pending = !job_->api().test(request) || pending;
      }
    if (!pending) return;
  } catch (const std::runtime_error&) {
  }
  job_->keep_for_good(std::exchange(pieces_, nullptr));
}

void MpiTransport::check_stopped() const {
  const MemberReport own = own_report();
  if (cancelled_)
    throw PeerLostError({.code = "LS3003", .what = cat(own.call, " of group ", group_.name, " was cut short")});
  if (const auto abort = job_->aborted()) throw stopped_by(abort->rank, abort->reason, own, group_.name);
  if (const std::string failure = job_->failure(); !failure.empty()) throw std::runtime_error(failure);
}

bool MpiTransport::gone(int member) const {
  return job_->closed(group_.key, world_rank(member)) || job_->has_died(world_rank(member));
}

MemberReport MpiTransport::own_report() const {
  return {.rank = world_rank(group_.rank), .sequence = progress_.sequence, .call = progress_.call.text()};
}

MemberReport MpiTransport::report_of(int rank, uint64_t group, std::optional<MpiMember::Status> status) const {
  using State = MemberReport::State;
  MemberReport report{.rank = rank};
  const auto last = job_->closed(group, rank);
  if (job_->has_died(rank)) {
    report.state = State::kDied;
    report.pid = job_->pid(rank);
  } else if (last) {
    report.state = State::kClosed;
    status = last;
  } else if (!status) {
    report.state = State::kSilent;
  } else if (!status->known) {
    report.state = State::kNeverMadeGroup;
  }
  if (!status) return report;
  report.sequence = status->sequence;
  report.inside = status->inside;
  report.call = status->call;
  report.seconds_ago = status->seconds_ago;
  return report;
}

PeerLostError MpiTransport::lost(int peer, Deadline began, const std::string& mpi_says) const {
  std::map<uint64_t, std::map<int, std::optional<MpiMember::Status>>> answers;  // by group and rank; none: silent
  const auto answer_of = [&](int rank, uint64_t group) {
    auto& of_group = answers[group];
    if (mpi_says.empty() && !of_group.contains(rank)) {
      const std::map<int, MpiMember::Status> said = job_->ask(group, {rank});
      of_group[rank] = said.contains(rank) ? std::optional(said.at(rank)) : std::nullopt;
    }
    return of_group[rank];
  };
  const Waiting first{
      .rank = world_rank(group_.rank), .waits_for = world_rank(peer), .group = group_.key, .call = progress_.call.text()};
  const std::vector<Waiting> chain = follow_waits(first, [&](const Waiting& wait) -> std::optional<GroupWait> {
    const auto answer = answer_of(wait.waits_for, wait.group);
    if (!answer || answer->kept_by.waits_for < 0 || job_->closed(wait.group, wait.waits_for)) return std::nullopt;
    return answer->kept_by;
  });
  const Waiting& last = chain.back();
  const PeerLostError error = lost_member(report_of(last.waits_for, last.group, answer_of(last.waits_for, last.group)),
                                          own_report(), group_.name, seconds(Clock::now() - began), chain);
  if (mpi_says.empty()) return error;
  Message message = error.message();
  message.what += cat("\n  MPI says: ", mpi_says);
  return PeerLostError(message);
}

}  // namespace lockstep::comm
