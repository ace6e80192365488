#include "lockstep/launch/failure_file.h"

#include <ctime>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep::launch {

void tell_launcher(const Environment& environment, const std::string& message) {
  const auto path = environment.find("TORCHELASTIC_ERROR_FILE");
  if (path == environment.end()) return;
  // torchrun prints py_callstack where there is one.
  const OrderedJson report = {
      {"message",
       {{"message", message},
        {"extraInfo", {{"py_callstack", message}, {"timestamp", std::to_string(std::time(nullptr))}}}}}};
  // Whole or not at all: torchrun may end this rank while it writes, and cannot read half a file.
  try {
    write_file(path->second, report.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
  } catch (const Error&) {  // the message stands on stderr as well
  }
}

}  // namespace lockstep::launch
