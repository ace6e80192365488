#include "lockstep/comm/socket_transport.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/base/descriptor.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSlice{100};       // between two looks at whether we were stopped
constexpr milliseconds kExplain{2000};    // for a reason to appear after a peer has closed its end
constexpr milliseconds kGreeting{2000};   // for a caller to say who it is

struct Greeting {
  uint64_t proof = 0;  // of the token and the group
  int64_t rank = 0;    // in the group
};

EnvironmentError refused(const std::string& what, int error) {
  return EnvironmentError({.code = "LS3043",
                           .what = cat(what, ": ", std::strerror(error)),
                           .way_out = "the address of this host must be one of its own that the others reach"});
}

// The first address of `host` (name or number); `use` tries it and keeps errno.
Descriptor open_at(const std::string& host, const std::string& port,
                   const std::function<bool(int, const addrinfo&)>& use) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0)
    throw EnvironmentError({.code = "LS3043", .what = cat("no address for host '", host, "': ", gai_strerror(code))});
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  int error = 0;
  for (const addrinfo* each = found; each; each = each->ai_next) {
    Descriptor socket(::socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (socket.open() && use(socket.get(), *each)) return socket;
    error = errno;
  }
  throw refused(cat(host, " port ", port), error);
}

std::string port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  const uint16_t port = address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                                      : reinterpret_cast<sockaddr_in&>(address).sin_port;
  return std::to_string(ntohs(port));
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

class SocketTransport : public Transport {
 public:
  SocketTransport(std::shared_ptr<Store> store, SocketGroup group)
      : store_(std::move(store)), group_(std::move(group)), links_(group_.ranks.size()) {
    if (size() > 1) listen_here();
  }

  int rank() const override { return group_.rank; }
  int size() const override { return static_cast<int>(group_.ranks.size()); }
  std::string backend() const override { return "tcp"; }

  void send(int peer, std::span<const std::byte> bytes, Deadline deadline) override {
    exchange(peer, bytes, -1, 0, nullptr, {}, deadline);
  }
  void recv(int peer, std::span<std::byte> bytes, Deadline deadline) override {
    exchange(-1, {}, peer, bytes.size(), bytes.data(), {}, deadline);
  }
  void send_recv(int to, std::span<const std::byte> out, int from, std::span<std::byte> in,
                 Deadline deadline) override {
    exchange(to, out, from, in.size(), in.data(), {}, deadline);
  }
  void send_recv(int to, std::span<const std::byte> out, int from, size_t in_size, const Consumer& consume,
                 Deadline deadline) override {
    exchange(to, out, from, in_size, nullptr, consume, deadline);
  }
  void publish(const Progress& progress) override {
    call_ = progress.call;
    if (group_.note) group_.note(progress);
  }
  void add_awaiting(int change) override {
    if (group_.note_awaiting) group_.note_awaiting(change);
  }
  void cancel() override { cancelled_ = true; }

 private:
  struct Wait {
    Deadline began = Clock::now();
    Deadline deadline;
  };

  void listen_here() {
    listener_ = open_at(group_.address, "0", [](int socket, const addrinfo& at) {
      return bind(socket, at.ai_addr, at.ai_addrlen) == 0 && listen(socket, SOMAXCONN) == 0;
    });
    store_->set(cat(group_.key, "/tcp/", rank()), cat(port_of(listener_.get()), "\n", group_.address));
  }

  Greeting greeting() const { return {.proof = hash64(cat(group_.token, "\n", group_.key)), .rank = rank()}; }

  int link_to(int peer, const Wait& wait) {
    Descriptor& link = links_[static_cast<size_t>(peer)];
    if (!link.open()) rank() < peer ? call(peer, wait) : answer(peer, wait);
    return link.get();
  }

  // The kernel takes the connection in before the peer looks at it: calling never waits for the peer itself.
  void call(int peer, const Wait& wait) {
    const std::string key = cat(group_.key, "/tcp/", peer);
    while (!store_->has(key)) look_around(peer, wait, nullptr);
    const std::string where = store_->get(key, milliseconds(10000));
    const size_t line = where.find('\n');
    Descriptor link = open_at(where.substr(line + 1), where.substr(0, line), [](int socket, const addrinfo& at) {
      return connect(socket, at.ai_addr, at.ai_addrlen) == 0 || errno == EINPROGRESS;
    });
    pollfd writable{.fd = link.get(), .events = POLLOUT, .revents = 0};
    while ((writable.revents & POLLOUT) == 0) look_around(peer, wait, &writable);
    const Greeting own = greeting();
    if (::send(link.get(), &own, sizeof own, MSG_NOSIGNAL) != sizeof own) throw lost(peer, wait, State::kClosed);
    keep(peer, std::move(link));
  }

  void answer(int peer, const Wait& wait) {
    pollfd callers{.fd = listener_.get(), .events = POLLIN, .revents = 0};
    while (!links_[static_cast<size_t>(peer)].open()) {
      look_around(peer, wait, &callers);
      Descriptor link(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!link.open()) continue;
      Greeting theirs;
      pollfd readable{.fd = link.get(), .events = POLLIN, .revents = 0};
      poll(&readable, 1, static_cast<int>(kGreeting.count()));
      const bool whole = ::recv(link.get(), &theirs, sizeof theirs, MSG_DONTWAIT) == sizeof theirs;
      if (whole && theirs.proof == greeting().proof && theirs.rank >= 0 && theirs.rank < rank())
        keep(static_cast<int>(theirs.rank), std::move(link));
    }
  }

  void keep(int peer, Descriptor link) {
    const int on = 1;
    setsockopt(link.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    links_[static_cast<size_t>(peer)] = std::move(link);
  }

  void exchange(int to, std::span<const std::byte> out, int from, size_t in_size, std::byte* store,
                const Consumer& consume, Deadline deadline) {
    const Wait wait{.deadline = deadline};
    if (out.empty()) to = -1;
    if (in_size == 0) from = -1;
    std::array<pollfd, 2> ends = {pollfd{.fd = to < 0 ? -1 : link_to(to, wait), .events = POLLOUT, .revents = 0},
                                  pollfd{.fd = from < 0 ? -1 : link_to(from, wait), .events = POLLIN, .revents = 0}};
    size_t received = 0;
    while (ends[0].fd >= 0 || ends[1].fd >= 0) {
      const int waits_for = ends[1].fd >= 0 ? from : to;
      if (poll(ends.data(), ends.size(), 0) == 0) look_around(waits_for, wait, ends.data(), ends.size());
      if (ends[0].fd >= 0 && ends[0].revents != 0) {
        push(to, out, wait);
        if (out.empty()) ends[0].fd = -1;
      }
      if (ends[1].fd >= 0 && ends[1].revents != 0) {
        store ? pull(from, {store + received, in_size - received}, received, wait)
              : pull_piece(from, in_size, received, consume, wait);
        if (received == in_size) ends[1].fd = -1;
      }
    }
    note_wait(-1);
  }

  void push(int peer, std::span<const std::byte>& out, const Wait& wait) {
    const ssize_t count = ::send(links_[static_cast<size_t>(peer)].get(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && !would_block(errno)) throw lost(peer, wait, State::kClosed);
    out = out.subspan(count > 0 ? static_cast<size_t>(count) : 0);
  }

  void pull(int peer, std::span<std::byte> in, size_t& received, const Wait& wait) {
    const ssize_t count = ::recv(links_[static_cast<size_t>(peer)].get(), in.data(), in.size(), MSG_DONTWAIT);
    if (count == 0 || (count < 0 && !would_block(errno))) throw lost(peer, wait, State::kClosed);
    received += count > 0 ? static_cast<size_t>(count) : 0;
  }

  // Pieces are as large as the buffer, but for the last.
  void pull_piece(int peer, size_t in_size, size_t& received, const Consumer& consume, const Wait& wait) {
    const size_t begin = received / buffer_.size() * buffer_.size();
    const size_t end = std::min(in_size, begin + buffer_.size());
    pull(peer, {buffer_.data() + (received - begin), end - received}, received, wait);
    if (received == end) consume({buffer_.data(), end - begin}, begin);
  }

  // Sleeps until something happens on `ends` or for a slice, and throws where waiting has come to its end.
  void look_around(int peer, const Wait& wait, pollfd* ends, size_t count = 1) {
    if (cancelled_)
      throw PeerLostError({.code = "LS3003", .what = cat(call_.text(), " of group ", group_.name, " was cut short")});
    if (group_.stopped) {
      if (const std::optional<PeerLostError> problem = group_.stopped()) throw *problem;
    }
    const Deadline now = Clock::now();
    if (now >= wait.deadline) throw lost(peer, wait, State::kThere);
    if (now - wait.began > kSlice) note_wait(peer);
    const auto left = std::chrono::ceil<milliseconds>(wait.deadline - now);
    poll(ends, ends ? count : 0, static_cast<int>(std::min(ends ? kSlice : milliseconds(10), left).count()));
  }

  using State = MemberReport::State;
  PeerLostError lost(int peer, const Wait& wait, State state) {
    // A rank that fails closes its ends first and tells the reason next.
    const Deadline until = Clock::now() + kExplain;
    while (state == State::kClosed && group_.stopped && Clock::now() < until) {
      if (const std::optional<PeerLostError> problem = group_.stopped()) return *problem;
      poll(nullptr, 0, 20);
    }
    const Waiting first{.rank = world_rank(rank()),
                        .waits_for = world_rank(peer),
                        .group = JobBoard::key(group_.name),
                        .call = call_.text()};
    Missing missing{.chain = {first}, .report = {.rank = first.waits_for}};
    if (state == State::kThere && group_.missing)
      missing = group_.missing(first);
    else if (group_.report)
      missing.report = group_.report(first.waits_for);
    if (state == State::kClosed) missing.report.state = state;
    const MemberReport own{.rank = first.rank, .sequence = missing.report.sequence, .call = call_.text()};
    return lost_member(missing.report, own, group_.name, std::chrono::duration<double>(Clock::now() - wait.began).count(),
                       missing.chain);
  }

  int world_rank(int member) const { return group_.ranks[static_cast<size_t>(member)]; }
  // For the others' messages; -1: for nobody.
  void note_wait(int peer) {
    if (!group_.note_wait || peer == noted_) return;
    noted_ = peer;
    group_.note_wait(peer < 0 ? -1 : world_rank(peer));
  }

  std::shared_ptr<Store> store_;
  SocketGroup group_;
  Descriptor listener_;
  std::vector<Descriptor> links_;  // by group rank
  CallLabel call_ = named_label("a call");
  int noted_ = -1;  // whom we have said to wait for
  std::atomic<bool> cancelled_ = false;
  alignas(64) std::array<std::byte, 65536> buffer_;
};

}  // namespace

std::unique_ptr<Transport> make_socket_transport(std::shared_ptr<Store> store, SocketGroup group) {
  return std::make_unique<SocketTransport>(std::move(store), std::move(group));
}

}  // namespace lockstep::comm
