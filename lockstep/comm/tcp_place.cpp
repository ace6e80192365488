#include "lockstep/comm/tcp_place.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "lockstep/base/descriptor.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

EnvironmentError problem_at(const TcpPlace& place, const std::string& what) {
  return EnvironmentError(
      {.code = "LS3125",
       .what = cat("the ranks cannot meet at ", place.text(), ": ", what),
       .way_out = "name an address of rank 0's host and a free port: --rendezvous HOST:PORT, or MASTER_ADDR and "
                  "MASTER_PORT"});
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const TcpPlace& place) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int problem = getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &wanted, &found);
  if (problem != 0) throw problem_at(place, gai_strerror(problem));
  return Addresses(found);
}

enum class Reach { kThisHost, kNetwork, kEverywhere };

Reach reach_of(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const uint32_t number = ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr);
    return number >> 24 == 127 ? Reach::kThisHost : number == INADDR_ANY ? Reach::kEverywhere : Reach::kNetwork;
  }
  const in6_addr& number = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&number)      ? Reach::kThisHost
         : IN6_IS_ADDR_UNSPECIFIED(&number) ? Reach::kEverywhere
                                            : Reach::kNetwork;
}

}  // namespace

std::string TcpPlace::text() const {
  return host.find(':') == std::string::npos ? cat(host, ":", port) : cat("[", host, "]:", port);
}

int port_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

int listen_at(const TcpPlace& place) {
  const Addresses addresses = resolve(place);
  int problem = 0;
  for (const addrinfo* entry = addresses.get(); entry; entry = entry->ai_next) {
    if (reach_of(*entry->ai_addr) == Reach::kEverywhere) throw problem_at(place, "that is every interface of the host");
    Descriptor listener(socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;  // a port of a job that has just ended can be had at once
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener.get(), entry->ai_addr, entry->ai_addrlen) == 0 && listen(listener.get(), SOMAXCONN) == 0)
      return listener.release();
    problem = errno;
  }
  throw problem_at(
      place, problem == EADDRNOTAVAIL ? "that is no address of the host that rank 0 is on" : std::strerror(problem));
}

bool accepts_connections(const TcpPlace& place) {
  const Addresses addresses = resolve(place);
  for (const addrinfo* entry = addresses.get(); entry; entry = entry->ai_next) {
    const Descriptor probe(socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connect(probe.get(), entry->ai_addr, entry->ai_addrlen) == 0) return true;
    pollfd watched{.fd = probe.get(), .events = POLLOUT, .revents = 0};
    if (errno != EINPROGRESS || poll(&watched, 1, 1000) != 1) continue;
    int problem = 0;
    socklen_t size = sizeof problem;
    if (getsockopt(probe.get(), SOL_SOCKET, SO_ERROR, &problem, &size) == 0 && problem == 0) return true;
  }
  return false;
}

bool is_loopback(const TcpPlace& place) {
  const Addresses addresses = resolve(place);
  for (const addrinfo* entry = addresses.get(); entry; entry = entry->ai_next)
    if (reach_of(*entry->ai_addr) != Reach::kThisHost) return false;
  return true;
}

std::string own_address_towards(const TcpPlace& place) {
  const Addresses addresses = resolve(place);
  int problem = 0;
  for (const addrinfo* entry = addresses.get(); entry; entry = entry->ai_next) {
    const Descriptor probe(socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));  // nothing is sent
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    std::array<char, NI_MAXHOST> text{};
    if (connect(probe.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0)
      return text.data();
    problem = errno;
  }
  throw problem_at(place, cat("no way leads there: ", std::strerror(problem)));
}

}  // namespace lockstep::comm
