#include "lockstep/launch/identity.h"

#include <charconv>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

// The value of `flag`, removed from the arguments together with it.
std::optional<int> take_number(std::vector<std::string>& arguments, const std::string& flag) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] != flag) continue;
    const std::string text = i + 1 < arguments.size() ? arguments[i + 1] : "";
    int value = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || problem != std::errc() || end != text.data() + text.size())
      throw ConfigError({.code = "LS1060",
                         .what = cat(flag, " needs a whole number, not '", text, "'"),
                         .way_out = "lockstep sets it itself: start local ranks with -n N"});
    arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i),
                    arguments.begin() + static_cast<std::ptrdiff_t>(i) + 2);
    return value;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> identity_flags(const Identity& identity) {
  return {"--rank",      std::to_string(identity.rank),     "--world-size", std::to_string(identity.world_size),
          "--region-fd", std::to_string(identity.region_fd)};
}

Identity take_identity(std::vector<std::string>& arguments) {
  const std::optional<int> rank = take_number(arguments, "--rank");
  const std::optional<int> size = take_number(arguments, "--world-size");
  const std::optional<int> fd = take_number(arguments, "--region-fd");
  if (!rank && !size && !fd) return {};
  if (!rank || !size || !fd)
    throw ConfigError({.code = "LS1060",
                       .what = "--rank, --world-size and --region-fd go together",
                       .way_out = "lockstep sets them itself: start local ranks with -n N"});
  if (*size < 1 || *rank < 0 || *rank >= *size)
    throw ConfigError({.code = "LS1060",
                       .what = cat("--rank ", *rank, " is not within --world-size ", *size),
                       .way_out = cat("use a rank of 0..", *size - 1)});
  return {.rank = *rank,
          .world_size = *size,
          .local_rank = *rank,
          .local_size = *size,
          .region_fd = *fd,
          .source = cat("lockstep -n ", *size)};
}

}  // namespace lockstep::launch
