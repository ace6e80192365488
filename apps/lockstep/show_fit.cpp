#include "apps/lockstep/show_fit.h"

#include "apps/lockstep/rooms.h"
#include "lockstep/base/text.h"

namespace lockstep::apps {
namespace {

using plan::Room;

OrderedJson way_json(const plan::WayOut& way) {
  OrderedJson set = OrderedJson::object();
  for (const config::Override& flag : way.set) set[flag.key] = flag.value;
  OrderedJson json = {{"change", way.change}, {"set", set}};
  if (way.ranks > 0) json["ranks"] = way.ranks;
  json.update({{"needed", way.peak}, {"saved", way.saved}, {"slower", way.slower}, {"same_numbers", way.same_numbers}, {"fits", way.fits}});
  return json;
}

}  // namespace

std::vector<Shortfall> shortfalls(const CommandLine& command_line, const config::RunConfig& config,
                                  const program::Layout& layout, const program::Program& program) {
  std::vector<Shortfall> found;
  for (const Room& room : rooms_here(command_line, config, layout.mesh.world_size())) {
    if (room.kind == Room::Kind::kHost && config.train.device == config::Device::kCuda) continue;
    const plan::Need need = plan::need_of(config, layout, program, room);
    if (!plan::fits(need, room))
      found.push_back({room, need, plan::ways_out(config, layout, {.rank = need.worst, .room = room})});
  }
  return found;
}

std::string shortfalls_text(const program::Layout& layout, const std::vector<Shortfall>& shortfalls) {
  std::string text;
  for (const Shortfall& one : shortfalls) {
    text += cat("\ndoes not fit: ", plan::shortage_line(layout, one.need, one.room), "; `lockstep train` refuses this\n");
    text += plan::ways_text(one.ways, one.room);
    if (one.room.kind == Room::Kind::kHost)
      text += "for GPUs: --train.device=cuda; for another machine: --memory.device_limit=SIZE, what a rank may have there\n";
  }
  return text;
}

OrderedJson shortfalls_json(const std::vector<Shortfall>& shortfalls) {
  OrderedJson json = OrderedJson::array();
  for (const Shortfall& one : shortfalls) {
    OrderedJson ways = OrderedJson::array();
    for (const plan::WayOut& way : one.ways) ways.push_back(way_json(way));
    json.push_back({{"of", one.room.kind == Room::Kind::kHost ? "host" : "device_limit"},
                    {"needed", one.need.total},
                    {"left", one.room.bytes},
                    {"source", one.room.source},
                    {"ways_out", ways}});
  }
  return json;
}

}  // namespace lockstep::apps
