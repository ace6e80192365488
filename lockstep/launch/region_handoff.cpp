#include "lockstep/launch/region_handoff.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/descriptor.h"
#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kRetry{20};       // between two looks for rank 0's socket
constexpr milliseconds kPatience{5000};  // of a rank behind rank 0's deadline, so that rank 0 says what is wrong
constexpr size_t kTextBytes = 480;

enum class Answer : int32_t { kRegion = 1, kGo, kWrongToken, kWrongWorld, kTaken, kOtherProcesses, kGaveUp };

// What a rank says when it comes, and what rank 0 answers; both ends run the same program.
struct Hello {
  uint64_t token = 0;
  int32_t rank = 0;
  int32_t world_size = 0;
  int32_t pid = 0;
};
struct Reply {
  Answer answer = Answer::kGo;
  int32_t number = 0;  // the world size that rank 0 was told
  std::array<char, kTextBytes> text{};
};

[[noreturn]] void fail(const std::string& what, int error) {
  throw EnvironmentError(
      {.code = "LS3110", .what = cat("joining the ranks of this host: ", what, ": ", std::strerror(error))});
}

[[noreturn]] void refuse(const std::string& what) {
  throw EnvironmentError(
      {.code = "LS3124",
       .what = what,
       .way_out = "give all ranks of a job the same LOCKSTEP_JOB_TOKEN, and each job a --rendezvous of its own"});
}

Descriptor open_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) fail("socket", errno);
  return socket;
}

struct Address {
  sockaddr_un value{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

// Abstract: lives as long as the socket that is bound to it.
Address meeting_place(const std::string& job) {
  const std::string name = cat("lockstep/", getuid(), "/", hash_text(hash64(job)));
  Address address;
  address.value.sun_family = AF_UNIX;
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

ucred peer_of(const Descriptor& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) fail("SO_PEERCRED", errno);
  return peer;
}

milliseconds left_until(Clock::time_point end) {
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(end - Clock::now()));
}

bool readable(const Descriptor& socket, milliseconds time) {
  pollfd watched{.fd = socket.get(), .events = POLLIN, .revents = 0};
  return poll(&watched, 1, static_cast<int>(std::min<int64_t>(time.count(), 1 << 30))) == 1;
}

// Sends a reply, with the region's descriptor where there is one. A peer that has gone is noticed by its hang-up.
void send_reply(const Descriptor& socket, const Reply& reply, int region = -1) {
  iovec part{.iov_base = const_cast<Reply*>(&reply), .iov_len = sizeof reply};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (region >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &region, sizeof region);
  }
  (void)!sendmsg(socket.get(), &message, MSG_NOSIGNAL);
}

struct Received {
  Reply reply;
  int region = -1;
};

// Nothing where the other side has gone.
std::optional<Received> receive_reply(const Descriptor& socket) {
  Received received;
  iovec part{.iov_base = &received.reply, .iov_len = sizeof received.reply};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC) != sizeof received.reply) return std::nullopt;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_type == SCM_RIGHTS) std::memcpy(&received.region, CMSG_DATA(header), sizeof(int));
  return received;
}

std::string numbers(const std::vector<int>& ranks) {
  std::vector<std::string> words;
  for (const int rank : ranks) words.push_back(std::to_string(rank));
  return cat(ranks.size() == 1 ? "rank " : "ranks ", join(words, ", "));
}

// Rank 0: makes the region, hands it to whoever comes and belongs here, and tells all to go when all have come.
class Host {
 public:
  explicit Host(const RegionHandoff& handoff)
      : handoff_(handoff),
        end_(Clock::now() + handoff.deadline),
        region_(SharedRegion::memfd(region_bytes(handoff.world_size))),
        guests_(static_cast<size_t>(handoff.world_size)) {}

  SharedRegion run() {
    listen();
    while (!missing().empty()) wait();
    for (const std::optional<Guest>& guest : guests_)
      if (guest) send_reply(guest->socket, {.answer = Answer::kGo});
    return std::move(region_);
  }

 private:
  struct Guest {
    Descriptor socket;
    int pid = 0;
  };

  void listen() {
    const Address address = meeting_place(handoff_.job);
    if (bind(listener_.get(), address.get(), address.size) != 0) {
      if (errno != EADDRINUSE) fail("bind", errno);
      throw ConfigError(
          {.code = "LS3005",
           .what = cat("another rank 0 of this user waits for the ranks of the same job (", handoff_.job, ")"),
           .way_out = "give every rank its own number, and each job a --rendezvous of its own"});
    }
    if (::listen(listener_.get(), handoff_.world_size) != 0) fail("listen", errno);
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < handoff_.world_size; ++rank)
      if (!guests_[static_cast<size_t>(rank)]) ranks.push_back(rank);
    return ranks;
  }

  // Ends with a new guest, one that was turned away, or an error: a guest that hangs up, or the deadline.
  void wait() {
    std::vector<pollfd> watched = {{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    std::vector<int> ranks = {0};
    for (int rank = 1; rank < handoff_.world_size; ++rank) {
      if (const auto& guest = guests_[static_cast<size_t>(rank)]) {
        watched.push_back({.fd = guest->socket.get(), .events = POLLIN, .revents = 0});
        ranks.push_back(rank);
      }
    }
    const auto left = static_cast<int>(std::min<int64_t>(left_until(end_).count(), 1 << 30));
    const int ready = poll(watched.data(), watched.size(), left);
    if (ready < 0 && errno != EINTR) fail("poll", errno);
    if (ready == 0)
      give_up(cat(numbers(missing()), " never came; rank 0 has waited ",
                  format_duration(std::chrono::duration<double>(handoff_.deadline).count())));
    for (size_t i = 1; i < watched.size(); ++i)
      if (watched[i].revents != 0)
        give_up(cat("rank ", ranks[i], " (process ", guests_[static_cast<size_t>(ranks[i])]->pid,
                    ") ended before all ranks had come"));
    if (watched[0].revents != 0) welcome();
  }

  [[noreturn]] void give_up(const std::string& why) {
    Reply reply{.answer = Answer::kGaveUp};
    std::memcpy(reply.text.data(), why.data(), std::min(why.size(), kTextBytes - 1));
    for (const std::optional<Guest>& guest : guests_)
      if (guest) send_reply(guest->socket, reply);
    throw PeerLostError({.code = "LS3123",
                         .what = cat(why, turned_away_ == 0 ? "" : cat("; others were turned away: ", turned_away_)),
                         .way_out = cat("start all ", handoff_.world_size,
                                        " ranks of the job; train.join_timeout is how long they wait")});
  }

  void welcome() {
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0) return;  // it has gone again
    Hello hello;
    const ucred peer = peer_of(socket);
    if (peer.uid != getuid() || !readable(socket, kPatience) ||
        recv(socket.get(), &hello, sizeof hello, 0) != sizeof hello) {
      ++turned_away_;
      return;
    }
    Reply reply{.answer = judge(hello, peer), .number = handoff_.world_size};
    if (reply.answer != Answer::kRegion) {
      ++turned_away_;
      return send_reply(socket, reply);
    }
    send_reply(socket, reply, region_.descriptor());
    guests_[static_cast<size_t>(hello.rank)] = Guest{.socket = std::move(socket), .pid = hello.pid};
  }

  Answer judge(const Hello& hello, const ucred& peer) const {
    if (hello.token != hash64(handoff_.token)) return Answer::kWrongToken;
    if (hello.world_size != handoff_.world_size) return Answer::kWrongWorld;
    if (hello.rank < 1 || hello.rank >= handoff_.world_size || guests_[static_cast<size_t>(hello.rank)])
      return Answer::kTaken;
    // Whoever counts processes otherwise would take living peers for dead.
    return peer.pid == hello.pid ? Answer::kRegion : Answer::kOtherProcesses;
  }

  const RegionHandoff& handoff_;
  Clock::time_point end_;
  SharedRegion region_;
  Descriptor listener_ = open_socket();
  std::vector<std::optional<Guest>> guests_;  // by rank
  int turned_away_ = 0;
};

// Another rank: finds rank 0's socket, takes the region, waits until all have it.
class Visitor {
 public:
  explicit Visitor(const RegionHandoff& handoff) : handoff_(handoff), end_(Clock::now() + handoff.deadline) {}

  SharedRegion run() {
    connect();
    last_ = Clock::now() + handoff_.deadline + kPatience;  // rank 0 may have come later than this one
    const Hello hello{
        .token = hash64(handoff_.token), .rank = handoff_.rank, .world_size = handoff_.world_size, .pid = getpid()};
    (void)!send(socket_.get(), &hello, sizeof hello, MSG_NOSIGNAL);
    const Received first = answer();
    if (first.reply.answer != Answer::kRegion || first.region < 0) turned_away(first.reply);
    SharedRegion region = SharedRegion::from_descriptor(first.region);
    const Received second = answer();
    if (second.reply.answer != Answer::kGo) turned_away(second.reply);
    return region;
  }

 private:
  void connect() {
    const Address address = meeting_place(handoff_.job);
    for (;;) {
      socket_ = open_socket();
      if (::connect(socket_.get(), address.get(), address.size) == 0) break;
      if (errno != ECONNREFUSED && errno != EINTR && errno != EAGAIN) fail("connect", errno);
      if (Clock::now() >= end_)
        throw lost(cat("rank 0 never came; rank ", handoff_.rank, " has waited ",
                       format_duration(std::chrono::duration<double>(handoff_.deadline).count())));
      std::this_thread::sleep_for(kRetry);
    }
    if (peer_of(socket_).uid != getuid())
      refuse(cat("the place where the ranks of ", handoff_.job, " meet is held by user ", peer_of(socket_).uid));
  }

  Received answer() const {
    if (!readable(socket_, left_until(last_))) throw lost("rank 0 came and says nothing");
    std::optional<Received> received = receive_reply(socket_);
    if (!received) throw lost("rank 0 ended before all ranks had come");
    return *received;
  }

  PeerLostError lost(const std::string& what) const {
    return PeerLostError(
        {.code = "LS3123", .what = what, .way_out = cat("start all ", handoff_.world_size, " ranks of the job")});
  }

  [[noreturn]] void turned_away(const Reply& reply) const {
    const std::string me = cat("rank ", handoff_.rank);
    if (reply.answer == Answer::kWrongToken)
      refuse(cat(me, " brought another job token than rank 0 of ", handoff_.job, " has"));
    if (reply.answer == Answer::kOtherProcesses)
      refuse(cat(me, " and rank 0 do not see the same processes (containers with process ids of their own)"));
    if (reply.answer == Answer::kGaveUp)
      throw lost(std::string(reply.text.data(), strnlen(reply.text.data(), kTextBytes)));
    throw ConfigError({.code = "LS3005",
                       .what = reply.answer == Answer::kTaken
                                   ? cat(me, " has joined this job before")
                                   : cat(me, " was told of ", handoff_.world_size, " ranks, rank 0 of ", reply.number),
                       .way_out = "start all ranks with the same world size, each with its own number"});
  }

  const RegionHandoff& handoff_;
  Clock::time_point end_;
  Clock::time_point last_;
  Descriptor socket_;
};

}  // namespace

SharedRegion share_region(const RegionHandoff& handoff) {
  return handoff.rank == 0 ? Host(handoff).run() : Visitor(handoff).run();
}

}  // namespace lockstep::launch
