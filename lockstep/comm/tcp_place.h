// A TCP port that one process listens at and others find. Errors of all functions: EnvironmentError LS3125, with the
// place.
#pragma once

#include <string>

namespace lockstep::comm {

struct TcpPlace {
  std::string host{};        // a name or a number; IPv6 without brackets
  int port = 0;              // 0: any free one, to listen at
  std::string text() const;  // "n1:29500", "[fe80::1]:29500"
};

// A listening socket on the first of the host's addresses that is ours; never on all interfaces. The caller closes it.
int listen_at(const TcpPlace& place);
int port_of(int socket);

bool accepts_connections(const TcpPlace& place);  // waits a second at most
// Every address of the name can be reached from this host alone.
bool is_loopback(const TcpPlace& place);
// The address of this host, as a number, that packets to the place leave from.
std::string own_address_towards(const TcpPlace& place);

}  // namespace lockstep::comm
