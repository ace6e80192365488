#include "lockstep/launch/identity.h"

#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

const char* const kWayOut = "start local ranks with -n N; lockstep train --help lists the flags of a rank";

[[noreturn]] void refuse(const std::string& what) {
  throw ConfigError({.code = "LS1060", .what = what, .way_out = kWayOut});
}

// The value of `--flag VALUE` or `--flag=VALUE`, removed from the arguments together with it.
std::optional<std::string> take_text(std::vector<std::string>& arguments, const std::string& flag) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto at = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    if (arguments[i].starts_with(flag + "=")) {
      const std::string value = arguments[i].substr(flag.size() + 1);
      arguments.erase(at);
      return value;
    }
    if (arguments[i] != flag) continue;
    if (i + 1 == arguments.size()) refuse(cat(flag, " needs a value"));
    const std::string value = arguments[i + 1];
    arguments.erase(at, at + 2);
    return value;
  }
  return std::nullopt;
}

std::optional<int> take_number(std::vector<std::string>& arguments, const std::string& flag) {
  const std::optional<std::string> text = take_text(arguments, flag);
  if (!text) return std::nullopt;
  const std::optional<int> value = parse_number<int>(*text);
  if (!value) refuse(cat(flag, " needs a whole number, not '", *text, "'"));
  return value;
}

// "n1:29500" or "[fe80::1]:29500".
void read_rendezvous(const std::string& text, Identity& identity) {
  const size_t colon = text.rfind(':');
  const int port = colon == std::string::npos ? 0 : parse_number<int>(text.substr(colon + 1)).value_or(0);
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (port < 1 || port > 65535 || host.empty())
    refuse(cat("--rendezvous ", text, ": HOST:PORT is needed, the address of rank 0"));
  identity.master_address = host;
  identity.master_port = port;
}

void check(const Identity& identity) {
  const int rank = identity.rank, size = identity.world_size;
  if (size < 1 || rank < 0 || rank >= size) refuse(cat("--rank ", rank, " is not within --world-size ", size));
  const int local_rank = identity.local_rank, local_size = identity.local_size;
  if (local_rank < 0 || local_rank >= local_size || local_size > size)
    refuse(cat("--local-rank ", local_rank, " of --local-size ", local_size, " does not fit into --world-size ", size));
  if (identity.region_fd < 0 && size > 1 && identity.master_address.empty())
    refuse(cat("--rank ", rank, " --world-size ", size, ": nothing says where the ranks meet: --rendezvous HOST:PORT"));
}

}  // namespace

std::vector<std::string> identity_flags(const Identity& identity) {
  std::vector<std::string> flags = {"--rank",       std::to_string(identity.rank),
                                    "--world-size", std::to_string(identity.world_size),
                                    "--region-fd",  std::to_string(identity.region_fd)};
  if (identity.on_one_host()) return flags;
  for (const std::string& word : {std::string("--local-rank"), std::to_string(identity.local_rank),
                                  std::string("--local-size"), std::to_string(identity.local_size)})
    flags.push_back(word);
  if (!identity.master_address.empty())
    flags.push_back(cat("--rendezvous=[", identity.master_address, "]:", identity.master_port));
  return flags;
}

Identity take_identity(std::vector<std::string>& arguments) {
  const std::vector<std::string> before = arguments;
  const std::optional<int> rank = take_number(arguments, "--rank");
  const std::optional<int> size = take_number(arguments, "--world-size");
  const std::optional<int> local_rank = take_number(arguments, "--local-rank");
  const std::optional<int> local_size = take_number(arguments, "--local-size");
  const std::optional<int> fd = take_number(arguments, "--region-fd");
  const std::optional<std::string> rendezvous = take_text(arguments, "--rendezvous");
  if (arguments.size() == before.size()) return {};
  if (!rank || !size) refuse("a rank needs both --rank and --world-size");
  if (local_rank.has_value() != local_size.has_value()) refuse("--local-rank and --local-size go together");
  Identity identity{.rank = *rank,
                    .world_size = *size,
                    .local_rank = local_rank.value_or(*rank),
                    .local_size = local_size.value_or(*size),
                    .region_fd = fd.value_or(-1)};
  if (rendezvous) read_rendezvous(*rendezvous, identity);
  check(identity);
  identity.launcher = fd ? Launcher::kLockstep : Launcher::kFlags;
  identity.source = fd ? cat("lockstep -n ", identity.local_size)
                       : cat("flags: --rank ", *rank, " --world-size ", *size, rendezvous ? " --rendezvous " : "",
                             rendezvous.value_or(""));
  identity.job = rendezvous.value_or("");
  return identity;
}

}  // namespace lockstep::launch
