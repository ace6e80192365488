// Lines typed by a person: with editing and history where standard input is a terminal and libedit was built in, else as
// they come.
#pragma once

#include <optional>
#include <string>

namespace lockstep::apps {

// The next line without its end; nothing at the end of input. Ctrl-C gives up the line: an empty one comes back.
std::optional<std::string> read_line(const std::string& prompt);

}  // namespace lockstep::apps
