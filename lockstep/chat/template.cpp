#include "lockstep/chat/template.h"

namespace lockstep::chat {

Template::Template(std::string_view source, std::string origin)
    : origin_(std::move(origin)), body_(parse_template(source, origin_)) {}

std::string Template::render(const OrderedJson& variables, std::time_t now, const RenderLimits& limits) const {
  return Interpreter(origin_, limits, now).run(body_, variables);
}

}  // namespace lockstep::chat
