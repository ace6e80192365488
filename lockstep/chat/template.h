// Chat templates: the Jinja templates of Hugging Face tokenizers that turn a conversation into the text of a prompt.
//
// Supported: for (with if, else, break, continue, unpacking), if/elif/else, set (also of blocks and of namespaces'
// attributes), macro, filter, with, raw, generation; expressions with all of Jinja's operators, slices, conditions, calls;
// the filters, tests and methods of builtins.h; range, dict, namespace, raise_exception, strftime_now. White space as with
// trim_blocks and lstrip_blocks. Anything else is a DataError that names it. There is no way out of a template: it sees
// its variables and nothing of this machine but the time.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/json.h"
#include "lockstep/chat/interpreter.h"

namespace lockstep::chat {

class Template {
 public:
  // DataError LS1246 where the text is no template, LS1247 for what is not supported; `origin` names it in messages.
  Template(std::string_view source, std::string origin);

  // The template with `variables`, an object. `now` is the time for strftime_now. DataError LS1248 where it goes wrong,
  // LS1249 where it refuses by raise_exception, LS1250 beyond the limits.
  std::string render(const OrderedJson& variables, std::time_t now, const RenderLimits& limits = {}) const;

 private:
  std::string origin_;
  Body body_;
};

}  // namespace lockstep::chat
