// Where the ranks stand: leaves with their nodes as tiles, coloured by the load of their NICs; of one node its devices.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/plan_html_parts.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {

using program::decimal_bytes;

namespace {

constexpr double kWidth = 1180, kTile = 42, kHigh = 30, kPadding = 8, kHead = 24, kGap = 12;
constexpr int kMostTiles = 256, kMostBoxes = 64;
constexpr int kLevels = 6;  // of load: a fifth each, and above the whole step

struct Tile {
  int begin = 0, end = 0;  // nodes, or devices of the one node
  double out = 0, in = 0;  // bytes of the busiest node in it
  double load = -1;        // of the step that its links are busy; -1: not known
  double slow = 1;
};
struct LeafBox {
  int begin = 0, end = 0;  // leaves
  std::vector<Tile> tiles{};
};

int per(int count, int most) { return (count + most - 1) / most; }

class Topology {
 public:
  explicit Topology(const PlanPage& page)
      : page_(page), cluster_(page.cluster), placement_(page.cluster, page.mesh, page.order), devices_(page.cluster.nodes == 1) {
    make_boxes();
  }

  std::string text() const {
    SvgWriter svg(kWidth);
    double top = 0;
    if (!devices_ && cluster_.leaves() > 1) {
      svg.rect("spine", 0, 0, kWidth, 26);
      svg.text("m b", kWidth / 2, 17, spine_text());
      top = 38;
    }
    double x = 0, y = top, row = 0;
    for (const LeafBox& box : boxes_) {
      const double width = box_width(box), height = box_height(box);
      if (x > 0 && x + width > kWidth) {
        x = 0;
        y += row + kGap;
        row = 0;
      }
      draw_box(svg, box, x, y, top > 0 && y == top);
      x += width + kGap;
      row = std::max(row, height);
    }
    const std::string picture = svg.done(y + row + 4, "nodes in leaves, coloured by the load of their NICs", columns());
    return cat(legend(), "<div data-pick=\"map-told\"", attribute("data-common", common_text()), ">", picture,
               "<output class=\"told\" id=\"map-told\">Hover, or use the arrow keys in the picture: which ranks, how many bytes, which collectives.</output></div>\n",
               note());
  }

 private:
  void make_boxes() {
    if (devices_) {
      boxes_.push_back({0, 1, tiles(0, cluster_.devices_per_node, per(cluster_.devices_per_node, kMostTiles))});
      return;
    }
    const int leaves = cluster_.leaves(), together = per(leaves, kMostBoxes);
    const int of_leaf = cluster_.network.nodes_per_leaf > 0 ? cluster_.network.nodes_per_leaf : cluster_.nodes;
    const auto nodes_until = [&](int leaf) { return std::min<int64_t>(int64_t{leaf} * of_leaf, cluster_.nodes); };
    for (grouped_ = per(cluster_.nodes, kMostTiles);; ++grouped_) {
      int count = 0;
      for (int leaf = 0; leaf < leaves; leaf += together)
        count += per(static_cast<int>(nodes_until(leaf + together) - nodes_until(leaf)), grouped_);
      if (count <= kMostTiles) break;
    }
    for (int leaf = 0; leaf < leaves; leaf += together) {
      const int end = std::min(leaf + together, leaves);
      boxes_.push_back({leaf, end, tiles(static_cast<int>(nodes_until(leaf)), static_cast<int>(nodes_until(end)), grouped_)});
    }
  }

  std::vector<Tile> tiles(int begin, int end, int together) const {
    std::vector<Tile> result;
    for (int first = begin; first < end; first += together) {
      Tile tile{.begin = first, .end = std::min(first + together, end)};
      if (devices_)
        load_device(tile);
      else
        for (int node = tile.begin; node < tile.end; ++node) load_node(tile, node);
      result.push_back(tile);
    }
    return result;
  }

  void load_node(Tile& tile, int node) const {
    const auto slow = cluster_.slow.nodes.find(node), nic = cluster_.slow.nics.find(node);
    const double nics = nic == cluster_.slow.nics.end() ? 1 : nic->second;
    tile.slow = std::min({tile.slow, slow == cluster_.slow.nodes.end() ? 1 : slow->second, nics});
    if (node >= static_cast<int>(page_.estimate.traffic.nodes.size())) return;
    const NodeLoad& load = page_.estimate.traffic.nodes[static_cast<size_t>(node)];
    tile.out = std::max(tile.out, load.out);
    tile.in = std::max(tile.in, load.in);
    const double could = cluster_.network.nic * cluster_.nics_per_node * cluster_.network.efficiency * nics * page_.estimate.seconds;
    if (could > 0) tile.load = std::max(tile.load, std::max(load.out, load.in) / could);
  }

  // Ports are known as a class: on average, and the busiest.
  void load_device(Tile& tile) const {
    for (const LinkLoad& link : page_.estimate.traffic.links)
      if ((link.link == LinkClass::kDomain || link.link == LinkClass::kHost) && link.capacity > 0 && page_.estimate.seconds > 0) {
        const bool busiest = link.where >= tile.begin && link.where < tile.end;
        const double bytes = busiest ? link.busiest : link.all / cluster_.devices();
        tile.out += bytes;
        tile.load = std::max(tile.load, bytes / (link.capacity * page_.estimate.seconds));
      }
  }

  static int level(double load) { return load > 1.005 ? kLevels - 1 : std::clamp(static_cast<int>(load * (kLevels - 1)), 0, kLevels - 2); }
  // A few boxes share the width; of very many all have eight tiles in a row.
  int columns_of(const LeafBox& box) const {
    const auto tiles = static_cast<int>(box.tiles.size());
    const int beside = std::clamp(static_cast<int>(boxes_.size()), 1, 4);
    const int room = static_cast<int>(((kWidth + kGap) / beside - kGap - 2 * kPadding) / kTile);
    const int most = std::max(1, std::min(tiles, tiles <= 8 || boxes_.size() > 4 ? std::min(room, 8) : room));
    // Full rows, where that costs less than half of the width.
    for (int columns = most; 2 * columns >= most; --columns)
      if (tiles % columns == 0) return columns;
    return most;
  }
  double box_width(const LeafBox& box) const { return std::max(2 * kPadding + kTile * columns_of(box), 150.0); }
  double box_height(const LeafBox& box) const {
    return kHead + kHigh * per(static_cast<int>(box.tiles.size()), std::max(1, columns_of(box))) + kPadding;
  }
  std::string columns() const { return cat(" data-columns=\"", boxes_.empty() ? 1 : columns_of(boxes_.front()), "\""); }

  void draw_box(SvgWriter& svg, const LeafBox& box, double x, double y, bool joined) const {
    if (joined) svg.rect("wire", x + box_width(box) / 2 - 3, y - 12, 6, 12);
    svg.rect("leaf", x, y, box_width(box), box_height(box));
    svg.text("b", x + kPadding, y + 16, box_name(box));
    for (size_t i = 0; i < box.tiles.size(); ++i) {
      const auto column = static_cast<double>(i % static_cast<size_t>(columns_of(box)));
      const auto row = static_cast<double>(i / static_cast<size_t>(columns_of(box)));
      draw_tile(svg, box.tiles[i], x + kPadding + column * kTile, y + kHead + row * kHigh);
    }
  }

  void draw_tile(SvgWriter& svg, const Tile& tile, double x, double y) const {
    svg.raw(cat("<g", attribute("data-t", tile_text(tile)), ">"));
    const std::string look = tile.load < 0 ? "t-none" : cat("t-", level(tile.load));
    svg.rect(look, x + 1, y + 1, kTile - 2, kHigh - 2);
    svg.text(cat("m ", look), x + kTile / 2, y + 13, tile.load < 0 ? "-" : percent(tile.load));
    svg.text(cat("m s ", look), x + kTile / 2, y + 24, tile_name(tile));
    svg.raw("</g>\n");
  }

  // As much as has room.
  static std::string tile_name(const Tile& tile) {
    if (tile.slow < 1) return cat(tile.begin, " slow");
    const std::string all = cat(tile.begin, "..", tile.end - 1);
    return tile.end - tile.begin == 1 ? cat(tile.begin) : all.size() > 8 ? cat(tile.begin, "..") : all;
  }

  static std::string percent(double share) { return cat(std::lround(100 * share), " %"); }

  std::string box_name(const LeafBox& box) const {
    if (devices_) return "the node";
    const std::string leaf = cluster_.leaves() == 1         ? "one leaf"
                             : box.end - box.begin > 1 ? cat("leaves ", box.begin, "..", box.end - 1)
                                                       : cat("leaf ", box.begin);
    return cat(leaf, stages_text(box));
  }

  // ": stages 0..3": where the pipeline stands.
  std::string stages_text(const LeafBox& box) const {
    if (page_.mesh.degree(mesh::Axis::kPp) == 1 || box.tiles.empty()) return "";
    int first = -1, last = -1;
    for (int device = box.tiles.front().begin * cluster_.devices_per_node; device < box.tiles.back().end * cluster_.devices_per_node; ++device) {
      const int rank = placement_.rank_of(device);
      if (rank < 0) continue;
      const int stage = page_.mesh.coordinates(rank)[mesh::Axis::kPp];
      first = first < 0 ? stage : std::min(first, stage);
      last = std::max(last, stage);
    }
    if (first < 0) return ": no ranks";
    return first == last ? cat(": stage ", first) : cat(": stages ", first, "..", last);
  }

  std::string spine_text() const {
    for (const LinkLoad& link : page_.estimate.traffic.links)
      if (link.link == LinkClass::kLeafUp && link.capacity > 0 && page_.estimate.seconds > 0)
        return cat("spines: up-links carry ", decimal_bytes(link.all), " a step; ", cluster_.network.rails ? "leaf switch " : "leaf ", link.where,
                   " is busiest, ",
                   percent(link.busiest / (link.capacity * page_.estimate.seconds)), " of the step");
    return "spines";
  }

  // "ranks 0..7: pp 0, dp_shard 3, tp 0..7".
  std::string ranks_text(int first_device, int end_device) const {
    int least = -1, most = -1, count = 0;
    mesh::PerAxis low = mesh::PerAxis::ones(), high = low;
    for (int device = first_device; device < end_device; ++device) {
      const int rank = placement_.rank_of(device);
      if (rank < 0) continue;
      const mesh::PerAxis at = page_.mesh.coordinates(rank);
      for (const mesh::Axis axis : mesh::kAxes) {
        low[axis] = count == 0 ? at[axis] : std::min(low[axis], at[axis]);
        high[axis] = count == 0 ? at[axis] : std::max(high[axis], at[axis]);
      }
      least = count == 0 ? rank : std::min(least, rank);
      most = std::max(most, rank);
      ++count;
    }
    if (count == 0) return "no rank stands here";
    std::vector<std::string> axes;
    for (const mesh::Axis axis : mesh::kAxes)
      if (page_.mesh.degree(axis) > 1) axes.push_back(cat(mesh::axis_name(axis), " ", low[axis], low[axis] == high[axis] ? "" : cat("..", high[axis])));
    const std::string ranks = most - least + 1 == count ? cat(least, most > least ? cat("..", most) : "") : cat(count, " of ", least, "..", most);
    return cat(count == 1 ? "rank " : "ranks ", ranks, axes.empty() ? "" : cat(": ", join(axes, ", ")));
  }

  std::string tile_text(const Tile& tile) const {
    const std::string_view what = devices_ ? "device" : "node";
    const int scale = devices_ ? 1 : cluster_.devices_per_node;
    std::string text = tile.end - tile.begin > 1 ? cat(what, "s ", tile.begin, "..", tile.end - 1) : cat(what, " ", tile.begin);
    if (!devices_ && cluster_.leaves() > 1) text += cat(" (leaf ", cluster_.leaf_of(tile.begin), ")");
    text += cat("; ", ranks_text(tile.begin * scale, tile.end * scale));
    if (tile.slow < 1) text += cat("; at ", percent(tile.slow), " of its speed");
    if (tile.load < 0) return cat(text, "; traffic not counted");
    const char* busiest = tile.end - tile.begin > 1 ? " of the busiest" : "";
    if (devices_) return cat(text, "; ", decimal_bytes(tile.out), " to the other devices a step, ", percent(tile.load), " of the step");
    return cat(text, "; NICs", busiest, ": ", decimal_bytes(tile.out), " out, ", decimal_bytes(tile.in), " in, ", percent(tile.load), " of the step");
  }

  // What every tile has in common: which axes leave a node, and with what.
  std::string common_text() const {
    std::vector<std::string> leaves, stays;
    for (const CallRow& row : page_.calls) {
      const std::string text = cat(row.axis, " ", row.collective, " (", row.algorithm, ", ", row.shape.ranks, " ranks) ", decimal_bytes(row.bytes));
      (row.shape.nodes > 1 ? leaves : stays).push_back(text);
    }
    std::string text;
    if (!leaves.empty()) text += cat("Each rank sends to other nodes: ", join(leaves, ", "), ". ");
    if (!stays.empty()) text += cat("Inside the node: ", join(stays, ", "), ".");
    return text;
  }

  std::string legend() const {
    SvgWriter svg(kWidth);
    svg.text("", 0, 15, devices_ ? "Load of a device's links, of the step:" : "Load of a node's NICs, of the step:");
    double x = 245;
    for (int i = 0; i < kLevels; ++i) {
      svg.rect(cat("t-", i), x, 3, 16, 16);
      const std::string text = i == kLevels - 1 ? "more than the step has" : cat(20 * i, " to ", 20 * (i + 1), " %");
      svg.text("", x + 22, 15, text);
      x += 50 + 6.8 * static_cast<double>(text.size());
    }
    svg.rect("t-none", x, 3, 16, 16);
    svg.text("", x + 22, 15, "not counted");
    return svg.done(22, "legend of the loads");
  }

  std::string note() const {
    const int nodes = cluster_.domain / std::max(1, cluster_.devices_per_node);
    std::string below = "<p class=\"q\">A tile: the load of the NICs, and below it the number of the node.";
    if (devices_) below = "<p class=\"q\">A tile: the load of the links, and below it the number of the device.";
    if (!devices_ && nodes > 1) below += cat(" ", nodes, " nodes in a row are one NVLink domain of ", cluster_.domain, " devices.");
    below += "</p>\n";
    if (devices_ || grouped_ == 1) return below;
    return cat(below, "<p class=\"q\">A tile stands for ", grouped_, " neighbouring nodes and shows the busiest of them.</p>\n");
  }

  const PlanPage& page_;
  const Cluster& cluster_;
  const Placement placement_;
  const bool devices_;
  int grouped_ = 1;  // nodes of a tile
  std::vector<LeafBox> boxes_{};
};

}  // namespace

std::string topology_svg(const PlanPage& page) { return Topology(page).text(); }

}  // namespace lockstep::plan
