#include "lockstep/checkpoint/train_state.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::checkpoint {

std::string train_state_text(const TrainState& state) {
  OrderedJson json = {{"step", state.step},
                      {"consumed_samples", state.consumed_samples},
                      {"consumed_tokens", state.consumed_tokens},
                      {"seed", state.seed},
                      {"data", OrderedJson(state.data)},
                      {"model", OrderedJson(state.model)},
                      {"version", state.version},
                      {"settings", OrderedJson(state.settings)},
                      {"world_size", state.world_size},
                      {"layout", state.layout}};
  if (!state.last_loads.empty()) json["last_loads"] = OrderedJson(state.last_loads);
  return json.dump(1) + "\n";
}

TrainState parse_train_state(std::string_view text, std::string_view origin) {
  const Json json = parse_json(text, origin);
  TrainState state;
  try {
    json.at("step").get_to(state.step);
    json.at("consumed_samples").get_to(state.consumed_samples);
    json.at("consumed_tokens").get_to(state.consumed_tokens);
    json.at("seed").get_to(state.seed);
    state.data = json.at("data");
    state.model = json.at("model");
    json.at("version").get_to(state.version);
    state.settings = json.value("settings", Json::object());
    state.last_loads = json.value("last_loads", Json::object());
    json.at("world_size").get_to(state.world_size);
    json.at("layout").get_to(state.layout);
  } catch (const Json::exception& error) {
    throw CheckpointError(
        {.code = "LS1302", .what = cat("not a training state: ", error.what()), .where = std::string(origin)});
  }
  return state;
}

}  // namespace lockstep::checkpoint
