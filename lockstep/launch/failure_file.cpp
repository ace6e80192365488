#include "lockstep/launch/failure_file.h"

#include <ctime>
#include <fstream>

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
  std::ofstream(path->second) << report.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace lockstep::launch
