#include "lockstep/plan/plan_html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/load.h"
#include "lockstep/plan/drawing_text.h"
#include "lockstep/plan/plan_html_parts.h"
#include "lockstep/plan/plan_text.h"
#include "lockstep/plan/test_plan_page.h"
#include "lockstep/program/render/render_text.h"

namespace lockstep::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr size_t kMostBytes = 400'000;

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) ++found;
  return found;
}

TEST(PlanHtml, SaysEveryFactAsText) {
  const PlanPage page = hand_made_page();
  const std::string html = plan_html(page);
  for (const char* id : {"decision", "fit", "step", "network", "layouts", "what-if", "sensitivity", "constants"}) {
    EXPECT_THAT(html, HasSubstr(cat("<section id=\"", id, "\">")));
    EXPECT_THAT(html, HasSubstr(cat("href=\"#", id, "\"")));
  }
  for (const std::string& text :
       {page.title, page.model, page.layout, escaped(page.command), std::string("It fits."), format_bytes(68.7e9), format_bytes(80e9 - 68.7e9),
        std::string("5.200 s"), std::string("4.800 s"), std::string("5.600 s"), page.estimate.widest, std::string("41.2 %"), std::string("44.4 %"),
        program::decimal_bytes(2.1e12), page.goodput, page.what_ifs[1].what, page.why_not[0].text, page.search.misses[0].text, page.search.best[3].why,
        describe(page.search.best[0].candidate), escaped(launch_flags(page.search.best[4].candidate)), std::string(reject_text(Reject::kHeads)),
        std::string("product_cap"), page.stack.origins.at("product_cap"), page.cluster.device.origin, escaped(page.config)})
    EXPECT_THAT(html, HasSubstr(text));
  // 5.1 and 6.4 s beside 5.2 s.
  EXPECT_THAT(html, HasSubstr(change_text(5.1 / 5.2 - 1)));
  EXPECT_THAT(html, HasSubstr(change_text(6.4 / 5.2 - 1)));
}

TEST(PlanHtml, MapsRanksToNodesAndLeaves) {
  const std::string html = plan_html(hand_made_page());
  // tp varies fastest, pp slowest: node 2 has the first replica of the second stage.
  EXPECT_THAT(html, HasSubstr("node 2 (leaf 1); ranks 16..23: pp 1, dp_shard 0, tp 0..7"));
  EXPECT_THAT(html, HasSubstr("node 3 (leaf 1); ranks 24..31: pp 1, dp_shard 1, tp 0..7"));
  // Of node 2: 2.2e12 x 2 / 4 bytes in 5.2 s over 8 NICs of 50 GB/s, 94 % of which payloads get.
  EXPECT_THAT(html, HasSubstr(cat(program::decimal_bytes(1.1e12), " out, ", program::decimal_bytes(1e11), " in, ",
                                  std::lround(100 * 1.1e12 / (8 * 50e9 * 0.94 * 5.2)), " % of the step")));
  EXPECT_THAT(html, HasSubstr("Each rank sends to other nodes: dp reduce_scatter (tree, 2 ranks)"));
  EXPECT_THAT(html, HasSubstr("Inside the node: tp all_gather (ring, 8 ranks)"));
  // Of dp 1e12 of 4e12 bytes cross the spines.
  EXPECT_THAT(html, HasSubstr("<td class=\"l\">dp</td><td>4.00 TB</td><td>0 B</td><td>4.00 TB</td><td>1.00 TB</td><td>100.0 %</td>"));
}

TEST(PlanHtml, SaysWhatDoesNotFit) {
  PlanPage page = hand_made_page();
  page.estimate.fits = false;
  page.estimate.stages[0].reserved = 84.1e9;
  const std::string html = plan_html(page);
  EXPECT_THAT(html, HasSubstr("It does not fit."));
  EXPECT_THAT(html, HasSubstr(cat(format_bytes(4.1e9), " are missing")));
  EXPECT_THAT(html, HasSubstr(cat("found to fit: ", describe(page.search.best[0].candidate))));
}

TEST(PlanHtml, SaysWhatThereIsNot) {
  PlanPage page = hand_made_page();
  page.search = {};
  page.calls.clear();
  page.what_ifs.clear();
  page.why_not.clear();
  page.goodput.clear();
  page.estimate.traffic = {};
  page.estimate.boxes.clear();
  const std::string html = plan_html(page);
  for (const char* text : {"No search was asked for", "No other condition was asked about", "traffic was not counted", "No drawing of the step"})
    EXPECT_THAT(html, HasSubstr(text));
  EXPECT_THAT(html, Not(HasSubstr("id=\"gantt-data\"")));
  EXPECT_THAT(html, Not(HasSubstr("#sensitivity")));
}

// Whatever stands in a text, it is text; nothing is fetched.
TEST(PlanHtml, EscapesTextFromOutside) {
  const std::string evil = "</script><script>alert(1)</script>\"><img src=x onerror=alert(2)>&";
  PlanPage page = hand_made_page();
  for (std::string* text : {&page.title, &page.command, &page.model, &page.layout, &page.config, &page.goodput, &page.cluster.device.name,
                            &page.cluster.device.origin,
                            &page.cluster.origin, &page.stack.name, &page.estimate.widest, &page.estimate.boxes[0].label, &page.estimate.traffic.axes[0].axis,
                            &page.calls[0].axis, &page.calls[0].collective, &page.calls[0].algorithm, &page.search.best[0].why, &page.search.misses[0].text,
                            &page.search.sensitivity[0].constant, &page.what_ifs[0].what, &page.what_ifs[0].note, &page.why_not[0].layout, &page.why_not[0].text, &page.what_ifs[0].group,
                            &page.commands[0].what, &page.commands[0].text})
    *text = evil;
  page.stack.origins["product_cap"] = evil;
  const std::string html = plan_html(page);
  EXPECT_EQ(count(html, "<script"), 2u) << "the data of the Gantt, and the script";
  EXPECT_EQ(count(html, "</script"), 2u);
  EXPECT_EQ(count(html, "<img"), 0u);
  EXPECT_THAT(html, HasSubstr("&lt;img src=x onerror=alert(2)&gt;"));
  for (const char* part : {"http://", "https://", "url(\"", "@import", "<link", "<iframe"}) EXPECT_THAT(html, Not(HasSubstr(part)));
}

TEST(PlanHtml, OfSixteenThousandRanksIsSmall) {
  const PlanPage page = large_page();
  ASSERT_EQ(page.mesh.world_size(), 16384);
  const std::string html = plan_html(page);
  EXPECT_LT(html.size(), kMostBytes);
  const std::string map = topology_svg(page);
  EXPECT_EQ(count(map, "<g data-t="), 256u) << "8 nodes each";
  EXPECT_THAT(map, HasSubstr("nodes 2040..2047 (leaf 63)"));
  EXPECT_THAT(map, HasSubstr("A tile stands for 8 neighbouring nodes"));
}

// However many nodes a leaf has: all of them in one tile each, never more tiles than an eye takes in.
TEST(PlanHtml, GroupsNodesOfEveryNetwork) {
  for (const int nodes_per_leaf : {0, 1, 3, 7, 32, 300}) {
    const PlanPage page = hand_made_page({.nodes = 1000, .nodes_per_leaf = nodes_per_leaf});
    const std::string map = topology_svg(page);
    EXPECT_LE(count(map, "<g data-t="), 256u) << nodes_per_leaf;
    EXPECT_THAT(map, HasSubstr("..999")) << nodes_per_leaf;
  }
  PlanPage one = hand_made_page({.nodes = 1, .nodes_per_leaf = 0, .pp = 1});
  const std::string map = topology_svg(one);
  EXPECT_EQ(count(map, "<g data-t="), 8u) << "devices";
  EXPECT_THAT(map, HasSubstr("device 3; rank 3: tp 3"));
}

TEST(PlanHtml, DrawsStagesThatAreAlikeOnceAndTheWorstAlways) {
  PlanPage page = hand_made_page();
  page.estimate.stages.resize(200, page.estimate.stages[1]);
  for (int i = 0; i < 200; ++i) page.estimate.stages[static_cast<size_t>(i)].stage = i;
  page.estimate.worst_stage = 102;
  page.estimate.stages[102].reserved = 79.9e9;
  const std::string html = fit_section(page);
  for (const char* name : {"stage 0, 10 blocks", "stages 1 to 101, 10 blocks", "stage 102, 10 blocks", "stages 103 to 199, 10 blocks"})
    EXPECT_THAT(html, HasSubstr(name));
  EXPECT_THAT(html, Not(HasSubstr("stages are drawn")));
  for (size_t i = 0; i < 200; ++i) page.estimate.stages[i].reserved = 60e9 + (i == 102 ? 19.9e9 : 1e9 * static_cast<double>(i % 2));
  const std::string some = fit_section(page);
  EXPECT_THAT(some, HasSubstr("stage 102, 10 blocks"));
  EXPECT_THAT(some, HasSubstr("stage 199, 10 blocks"));
  EXPECT_THAT(some, HasSubstr(" of 200 stages are drawn"));
}

// The boxes that a Gantt's data stands for, by (stage, lane).
std::map<std::pair<int, std::string>, std::vector<TimedBox>> boxes_in(const Json& json) {
  std::map<std::pair<int, std::string>, std::vector<TimedBox>> boxes;
  const double tick = json.at("step").get<double>() / json.at("ticks").get<double>();
  for (const Json& row : json.at("rows")) {
    double now = 0;
    for (const std::string& text : split(row.at("boxes").get<std::string>(), ';')) {
      const std::vector<std::string> parts = split(text, ',');
      const auto number = [&](size_t i) { return parts.at(i).empty() ? 0.0 : static_cast<double>(*parse_number<int64_t>(parts[i])); };
      const double start = now + number(1);
      now = start + number(2);
      boxes[{row.at("stage"), row.at("lane")}].push_back({.label = json.at("labels").at(static_cast<size_t>(number(0))), .start = start * tick,
                                                          .end = now * tick});
    }
  }
  return boxes;
}

TEST(PlanGantt, KeepsEveryBoxOfAShortStep) {
  const StepEstimate estimate = hand_made_estimate({});
  auto boxes = boxes_in(parse_json(gantt_json(estimate), "x"));
  std::map<std::pair<int, std::string>, size_t> next;
  for (const TimedBox& box : estimate.boxes) {
    const std::pair key{box.stage, std::string(1, box.lane)};
    ASSERT_LT(next[key], boxes[key].size());
    const TimedBox& told = boxes[key][next[key]++];
    EXPECT_EQ(told.label, box.label);
    EXPECT_NEAR(told.start, box.start, estimate.seconds / 200000);
    EXPECT_NEAR(told.end, box.end, 2 * estimate.seconds / 200000);
  }
}

TEST(PlanGantt, KeepsTheEndsOfALongPipeline) {
  const StepEstimate estimate = hand_made_estimate({.nodes = 64, .pp = 64, .microbatches = 512});
  ASSERT_GT(estimate.boxes.size(), 100'000u);
  const std::string text = gantt_json(estimate);
  EXPECT_LT(text.size(), 200'000u);
  const auto boxes = boxes_in(parse_json(text, "x"));
  EXPECT_TRUE(boxes.contains({0, "c"}));
  EXPECT_TRUE(boxes.contains({63, "c"}));
  EXPECT_EQ(boxes.at({0, "c"}).size(), 1025u) << "each F and B, and the update";
}

// What `lockstep train` reads of them is the candidate.
TEST(LaunchFlags, AreKeysOfTheConfiguration) {
  const Candidate candidate{.tp = 8, .pp = 4, .cp = 2, .dp = 16, .virtual_stages = 2, .zero = 1, .micro_batch = 3, .sequence_parallel = false,
                            .offload_optimizer = true};
  const std::string flags = launch_flags(candidate);
  EXPECT_THAT(flags, testing::StartsWith("-n 1024 "));
  std::vector<config::Override> overrides;
  for (const std::string& flag : split(flags, ' ')) {
    if (!flag.starts_with("--")) continue;
    const size_t equals = flag.find('=');
    overrides.push_back({flag.substr(2, equals - 2), flag.substr(equals + 1)});
  }
  const config::RunConfig config = config::load_config({}, overrides).config;
  EXPECT_EQ(config.parallel.tp, 8);
  EXPECT_EQ(config.parallel.pp, 4);
  EXPECT_EQ(config.parallel.cp, 2);
  EXPECT_EQ(config.parallel.virtual_stages, 2);
  EXPECT_EQ(config.parallel.zero, 1);
  EXPECT_EQ(config.train.micro_batch, 3);
  EXPECT_FALSE(config.parallel.sequence_parallel);
  EXPECT_EQ(config.parallel.schedule.kind, candidate.schedule);
  EXPECT_EQ(config.memory.recompute.list, std::vector{candidate.recompute});
  EXPECT_TRUE(config.memory.offload.has(config::Offloaded::kOptimizer));
}

TEST(StepMoney, IsPriceTimesDevicesTimesHours) {
  EXPECT_DOUBLE_EQ(step_money({.price = 2}, 8, 1800), 8);
  EXPECT_EQ(step_money({}, 8, 1800), 0);
}

TEST(ShapeText, SaysWhoSharesNics) {
  EXPECT_EQ(shape_text({.ranks = 8, .largest_domain = 8, .per_node = 8}), "8 ranks on 1 node");
  EXPECT_EQ(shape_text({.ranks = 16, .domains = 16, .nodes = 16, .leaves = 2, .sharing = 8}),
            "16 ranks on 16 nodes in 2 leaves, 8 such groups share the NICs of a node");
  EXPECT_EQ(shape_text({.ranks = 64, .nodes = 16, .largest_domain = 64, .per_node = 4}), "64 ranks on 16 nodes, one NVLink domain");
}

}  // namespace
}  // namespace lockstep::plan
