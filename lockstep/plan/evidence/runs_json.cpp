#include "lockstep/plan/evidence/runs_json.h"

#include "lockstep/base/json.h"

namespace lockstep::plan {
namespace {

OrderedJson pairs(const std::vector<std::pair<std::string, std::string>>& fields) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, value] : fields) json[name] = value;
  return json;
}

OrderedJson line_of(const Prediction& prediction) {
  OrderedJson line{{"id", prediction.id}};
  if (!prediction.predicted()) {
    for (const char* name : {"step_time_s", "mfu", "peak_memory_bytes", "band", "breakdown"}) line[name] = nullptr;
    line["reason"] = prediction.reason;
    return line;
  }
  line["step_time_s"] = prediction.seconds;
  line["mfu"] = prediction.mfu;
  line["mfu_causal"] = prediction.mfu_causal;
  line["peak_memory_bytes"] = prediction.memory.reserved;
  line["band"] = {prediction.low, prediction.high};
  OrderedJson breakdown = OrderedJson::object();
  for (const NamedTerm& term : kNamedTerms) breakdown[std::string(term.name)] = prediction.breakdown.*term.seconds;
  line["breakdown"] = std::move(breakdown);
  line["memory"] = {{"allocated", prediction.memory.allocated}, {"reserved", prediction.memory.reserved}, {"device", prediction.memory.device}};
  line["own_memory_bytes"] = prediction.own_memory;
  line["fits"] = prediction.fits;
  line["stack"] = prediction.stack;
  line["widest"] = prediction.widest;
  line["assumed"] = pairs(prediction.assumed);
  line["notes"] = prediction.notes;
  return line;
}

}  // namespace

std::string runs_json(const std::vector<Prediction>& predictions) {
  std::string text;
  for (const Prediction& prediction : predictions) text += line_of(prediction).dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  return text;
}

}  // namespace lockstep::plan
