#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string render(const Message& message) {
  std::string text = message.where.empty() ? "" : message.where + ": ";
  text += "error " + message.code + ": " + message.what;
  if (!message.way_out.empty()) text += "\n  " + message.way_out;
  return text;
}

}  // namespace

Error::Error(ExitCode exit_code, Message message)
    : std::runtime_error(render(message)), exit_code_(exit_code), message_(std::move(message)) {}

}  // namespace lockstep
