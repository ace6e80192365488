// Work that may crash or that another program does, in a process of its own.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::apps {

// Whether it went well, and what it said. Of a child that a signal ended, the signal.
using ChildAnswer = std::pair<bool, std::string>;

ChildAnswer in_child(const std::function<ChildAnswer()>& work);
// The program at the path words[0]; what it writes, standard error too. Well is exit code 0.
ChildAnswer run_program(const std::vector<std::string>& words);

}  // namespace lockstep::apps
