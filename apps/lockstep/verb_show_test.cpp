// lockstep show as a person calls it, and the pages under docs/ that quote it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <vector>

#include "apps/lockstep/test_program.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/data/token_file.h"
#include "support/folders.h"

namespace lockstep::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Outcome show(const std::string& arguments) { return run_program("show " + arguments); }

TEST(Show, WorksWithAPresetAlone) {
  for (const char* what : {"program", "layout", "memory", "traffic"}) {
    for (const char* preset : {"gpt2-test", "llama-test", "gpt2-124m", "llama3-8b", "gpt-100b"}) {
      for (const char* ranks : {"1", "3"}) {
        const Outcome outcome = show(cat(what, " -n ", ranks, " --train.device=cuda --model.preset=", preset));
        EXPECT_EQ(outcome.code, 0) << outcome.output;
      }
    }
  }
}

// Of a rank of another stage too, with and without --json.
TEST(Show, BlockOfRanksOfEveryStage) {
  const std::string pipeline = "block -n 2 --model.preset=llama-test --train.micro_batch=1 --train.global_batch=4 --parallel.pp=2";
  const Outcome outcome = show(pipeline + " --json");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json json = parse_json(outcome.output, "block");
  ASSERT_EQ(json["ranks"].size(), 2U);
  EXPECT_EQ(json["ranks"][0]["block"], json["ranks"][1]["block"]);
  EXPECT_THAT(show(pipeline + " --rank=1").output, HasSubstr("block 0 on rank 1"));
}

// Rows of experts on several ranks beside the block, of the group of each rank; of others the page is the block alone.
TEST(Show, BlockDrawsTheWayOfTokens) {
  const std::string block = "block -n 4 --model.preset=mixtral-test --train.seq_len=16 --train.micro_batch=1 --train.global_batch=4";
  const std::string shared = block + " --parallel.ep=2";
  EXPECT_THAT(show(block).output, Not(HasSubstr("from rank to rank")));
  EXPECT_THAT(show(shared + " --rank=2").output, HasSubstr("\n  to rank 3"));
  const Json json = parse_json(show(shared + " --json").output, "block");
  const Json& tokens = json["ranks"][3]["tokens"];
  EXPECT_EQ(tokens["ranks"], Json::parse(R"([{"rank": 2, "experts": [0, 4]}, {"rank": 3, "experts": [4, 8]}])"));
  EXPECT_EQ(tokens["assignments"], 32);  // 16 rows x 2
  ASSERT_EQ(tokens["calls"].size(), 2U);
  EXPECT_EQ(tokens["calls"][0]["rows"], Json::parse("[[16, 16], [16, 16]]"));
  EXPECT_FALSE(parse_json(show(block + " --json").output, "block")["ranks"][0].contains("tokens"));
}

// Who holds which tokens, as text and as JSON; what is asked of it is checked.
TEST(Show, Context) {
  const std::string context = "context -n 2 --model.preset=llama-test --parallel.cp=2 --train.seq_len=16 --train.micro_batch=1 --train.global_batch=1";
  const Outcome page = show(context + " --flops=6 --bandwidth=1");
  EXPECT_EQ(page.code, 0) << page.output;
  EXPECT_THAT(page.output, HasSubstr("\n0     0..3, 12..15\n1     4..11\n"));
  EXPECT_THAT(page.output, HasSubstr("F = 6 FLOP/s"));
  const Json json = parse_json(show(context + " --json").output, "context")["context"];
  EXPECT_EQ(json["ranks"], Json::parse(R"([{"rank": 0, "tokens": [[0, 4], [12, 16]]}, {"rank": 1, "tokens": [[4, 12]]}])"));
  EXPECT_EQ(json["work"]["contiguous"]["pairs"], Json::parse("[[36, 0], [36, 64]]"));
  EXPECT_EQ(json["modes"][0], Json::parse(R"({"mode": "ring", "forward": 128.0, "backward": 384.0})"));
  const std::string windowed = context + " --model.window=5";
  EXPECT_THAT(show(windowed).output, HasSubstr("nothing goes round: a token sees 5 tokens, so the last 4 of each piece go to who has the next piece"));
  const Json ends = parse_json(show(windowed + " --json").output, "context")["context"];
  EXPECT_EQ(ends["window_ends"], 4);
  EXPECT_FALSE(ends.contains("ring") || ends.contains("work"));
  EXPECT_THAT(show("context --model.preset=llama-test").output, HasSubstr("every rank holds whole sequences: parallel.cp = 1\n"));

  const std::string masked = context + " --data.document_mask=true";
  EXPECT_THAT(show(masked + " --documents=5,6").output, HasSubstr("documents begin at 0, 5, 11\n"));
  EXPECT_THAT(show(context + " --documents=5,6").output, HasSubstr("--data.document_mask=true"));
  EXPECT_THAT(show(masked + " --documents=5,12").output, HasSubstr("17 tokens, and a sequence has 16"));
  EXPECT_THAT(show(masked + " --documents=5,x").output, HasSubstr("lengths in tokens are needed"));
  const support::ScopedFolder folder("show-context");
  data::TokenFileWriter writer(folder / "train", 512);
  for (const size_t length : {10, 5, 7}) writer.add_document(std::vector<int32_t>(length, 1));
  writer.finish();
  const Outcome read = show(cat(context, " --data.pack=documents --sequences=9 --data.train=", (folder / "train").string()));
  EXPECT_EQ(read.code, 0) << read.output;
  EXPECT_THAT(read.output, HasSubstr("\n3 documents, 0 of them cut, in 2 sequences of 16 tokens, 31.25 % of them fill\nwork of 2 of them"));
  EXPECT_THAT(show(masked + " --sequences=1").output, HasSubstr("data.train names no token file"));
  EXPECT_THAT(show(context + " --flops=0 --bandwidth=1").output, HasSubstr("a number above 0 is needed"));
  EXPECT_THAT(show(context + " --flops=1").output, HasSubstr("a machine has both"));
  EXPECT_THAT(show("layout --flops=1 --bandwidth=1 --model.preset=llama-test").output, HasSubstr("--flops goes with context"));
}

// A plan for the CPU is one for this host, as for `train`; one for GPUs is held against a limit alone.
TEST(Show, MemoryThatDoesNotFitIsSaidWithTheWaysOut) {
  const std::string large = "memory -n 2 --model.preset=gpt-100b --train.seq_len=64";
  const Outcome here = show(large);
  EXPECT_EQ(here.code, 4);
  EXPECT_THAT(here.output, HasSubstr("does not fit: 2 ranks of this host would together need "));
  EXPECT_THAT(here.output, HasSubstr("cheapest ways out"));
  EXPECT_THAT(here.output, Not(HasSubstr("memory.offload = ")));
  EXPECT_EQ(show(large + " --train.device=cuda").code, 0);
  const Outcome limited = show(large + " --train.device=cuda --memory.device_limit=80GiB");
  EXPECT_EQ(limited.code, 4);
  EXPECT_THAT(limited.output, HasSubstr("memory.device_limit = 80.0 GiB; `lockstep train` refuses this"));
  const Json json = parse_json(show(large + " --json --memory.device_limit=80GiB").output, "memory");
  EXPECT_EQ(json["fits"], false);
  EXPECT_GT(json["shortfalls"][0]["ways_out"].size(), 0u);
  EXPECT_EQ(show(large + " --memory.device_limit=9999TiB").code, 0);
}

// Pages are of the ranks that differ; what has a part for every rank is refused ahead of it.
TEST(Show, AMillionRanks) {
  const std::string job = " -n 1048576 --train.device=cuda --model.preset=llama3-8b --parallel.tp=8 --parallel.pp=8 --parallel.zero=1";
  for (const char* what : {"program", "layout", "memory", "traffic", "memory --rank 1048575 --json"}) {
    const Outcome outcome = show(what + job);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_LT(outcome.output.size(), 100'000u) << what;
  }
  const Outcome drawn = show("program --grid" + job), told = show("memory --json" + job);
  EXPECT_EQ(drawn.code, 2);
  EXPECT_THAT(drawn.output, HasSubstr("a drawing over time has F and B of all ranks: 8912896, more than 8388608"));
  EXPECT_EQ(told.code, 2);
  EXPECT_THAT(told.output, HasSubstr("--rank R tells one of them"));
}

TEST(Show, ReadsARunFile) {
  const support::ScopedFolder folder("show-test");
  std::ofstream(folder / "run.toml") << "[model]\npreset = \"gpt2-test\"\n[train]\nseq_len = 32\nglobal_batch = 12\n"
                                        "micro_batch = 2\n[parallel]\ndp = 3\n";
  const std::string file = (folder / "run.toml").string();
  EXPECT_THAT(show(file + " layout").output, HasSubstr("dp 3 (ring), 2 microbatches x 2 sequences x 32 tokens, fp32"));
  const Outcome refused = show(file + " layout -n 2");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, HasSubstr("[mesh] dp(3) = 3, but 2 ranks were started"));
}

TEST(Show, OneRankAlone) {
  const std::string layout = "--model.preset=gpt2-test -n 3 --parallel.data_parallel=parameter_server";
  EXPECT_THAT(show("program --rank 0 " + layout).output, HasSubstr("STEP"));
  EXPECT_THAT(show("program --rank 2 " + layout).output, Not(HasSubstr("STEP")));
  EXPECT_THAT(show("memory --rank 2 " + layout).output, HasSubstr("held by the server"));
  const Outcome refused = show("program --rank 3 " + layout);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, HasSubstr("the layout has ranks 0 to 2"));
}

TEST(Show, RefusesWhatItCannotShow) {
  EXPECT_EQ(show("--model.preset=gpt2-test").code, 2);
  EXPECT_THAT(show("trafic --model.preset=gpt2-test").output, HasSubstr("LS1004"));
  EXPECT_THAT(show("layout --model.preset=gpt2-1234m").output, HasSubstr("LS1111"));
  EXPECT_THAT(show("layout --model.preset=gpt2-10m").output, HasSubstr("LS1114"));
}

// No flag is accepted and left unread.
TEST(Show, RefusesFlagsThatThePageDoesNotRead) {
  const std::string layout = " -n 2 --model.preset=gpt2-test";
  const auto refused = [&](const std::string& arguments, const std::string& words) {
    const Outcome outcome = show(arguments + layout);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr("LS1004")) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr(words)) << arguments;
  };
  for (const char* what : {"program", "block", "memory", "traffic", "schedules"})
    refused(cat(what, " --ranks-per-node 4"), cat("--ranks-per-node goes with layout, and not with ", what));
  for (const char* what : {"program", "layout", "block", "traffic", "schedules"})
    refused(cat(what, " --timeline"), cat("--timeline goes with memory, and not with ", what));
  for (const char* what : {"layout", "block", "memory", "traffic", "schedules"})
    refused(cat(what, " --draw"), cat("--draw goes with program, and not with ", what));
  for (const char* what : {"layout", "block", "memory", "schedules"})
    refused(cat(what, " --full"), cat("--full goes with program or traffic, and not with ", what));
  refused("schedules --rank 1", "and not with schedules");
  refused("layout --rank 1 --ranks-per-node 4", "--rank shows one");
  refused("traffic --json --full", "--json has all of it");
  refused("program --json --draw", "--json has all of it");
  refused("program --grid --costs c.toml --measured runs", "drawn by --html and --trace alone");
  for (const char* fine : {"layout --ranks-per-node 4 --json", "memory --timeline --json --rank 1", "traffic --full --rank 1"})
    EXPECT_EQ(show(fine + layout).code, 0) << fine;
}

TEST(Show, AnUnsetKeyIsCalledSo) {
  const std::string refused =
      show("layout -n 3 --model.preset=gpt2-test --parallel.zero=1 --parallel.dp_shard=2 --parallel.dp_replicate=1").output;
  EXPECT_THAT(refused, HasSubstr("parallel.tp (not set)  [mesh] dp(2) = 2, but 3 ranks were started"));
  EXPECT_THAT(refused, Not(HasSubstr("default")));
}

TEST(Show, ShardsAndTheirTraffic) {
  const std::string layout = " -n 4 --model.preset=llama-test --parallel.zero=3 --parallel.dp_shard=2";
  const std::string table = show("layout" + layout).output;
  EXPECT_THAT(table, HasSubstr("dp_replicate 2 x dp_shard 2 (zero 3)"));
  EXPECT_THAT(table, HasSubstr("1 of 2 on ranks 2, 3  ranks 1, 3"));
  const std::string traffic = show("traffic" + layout).output;
  EXPECT_THAT(traffic, HasSubstr("unshard blocks.*"));
  EXPECT_THAT(traffic, HasSubstr("* zero 3: and parameters       2 P        P       3 P"));
  EXPECT_THAT(traffic, HasSubstr("between the R = 2 groups"));
  const Json json = parse_json(show("traffic --json" + layout).output, "traffic")["sharding"];
  EXPECT_EQ(json["shards"], 2);
  EXPECT_EQ(json["replicas"], 2);
  ASSERT_EQ(json["stages"].size(), 3u);
  for (int zero : {1, 2, 3}) EXPECT_EQ(json["stages"][static_cast<size_t>(zero - 1)]["gathers"], zero == 3 ? 2 : 1);
  EXPECT_GT(json["between_replicas"]["predicted_bytes"].get<int64_t>(), 0);
  const Json shard = parse_json(show("layout --json" + layout).output, "layout")["ranks"][3]["shard"];
  EXPECT_EQ(shard["index"], 1);
  EXPECT_EQ(shard["ranks"], Json::array({2, 3}));
  EXPECT_EQ(shard["same_on"], Json::array({1, 3}));
}

TEST(Show, TheTrafficOfEachStage) {
  const std::string layout = " -n 4 --parallel.pp=2 --train.micro_batch=1 --train.global_batch=4 --model.preset=gpt2-test";
  const std::string text = show("traffic" + layout).output;
  EXPECT_THAT(text, HasSubstr("rank 0, stage 0: embed..b0"));
  EXPECT_THAT(text, HasSubstr("rank 1: as on rank 0, each with its own peers\n\nrank 2, stage 1: b1..head"));
  EXPECT_THAT(text, HasSubstr("rank 3: as on rank 2"));
  EXPECT_THAT(text, HasSubstr("one synchronisation of the gradients of each stage over n = 2 ranks"));
  const std::string last = show("traffic --rank 3" + layout).output;
  EXPECT_THAT(last, HasSubstr("rank 3, stage 1: b1..head"));
  EXPECT_THAT(last, Not(HasSubstr("rank 0")));
  const Json json = parse_json(show("traffic --json" + layout).output, "traffic");
  EXPECT_EQ(json["alike"], Json({{0, 1}, {2, 3}}));
  EXPECT_EQ(json["ranks"][3]["stages"], Json::array({1}));
  // The unit of the tied embedding, 512 words and 64 positions, is in both stages.
  const int64_t first = json["ranks"][0]["parameters"], second = json["ranks"][2]["parameters"];
  EXPECT_EQ(first + second, 84288 + (512 + 64) * 48);
  const Json of_ranks = json["synchronisation"]["of_ranks"];
  ASSERT_EQ(of_ranks.size(), 2u);
  EXPECT_EQ(of_ranks[1]["rank"], 2);
  EXPECT_EQ(of_ranks[1]["fp32"]["ring_link_bytes"], 4.0 * static_cast<double>(second));
  const Json sharded = parse_json(show("traffic --json --parallel.zero=1" + layout).output, "traffic")["sharding"];
  EXPECT_EQ(sharded["of_ranks"].size(), 2u);
  EXPECT_EQ(sharded["of_ranks"][1]["stages"].size(), 3u);
}

TEST(Show, Json) {
  const std::string layout = " --json -n 2 --model.preset=gpt2-test";
  const Json program = parse_json(show("program" + layout).output, "program");
  EXPECT_EQ(program["ranks"].size(), 2u);
  EXPECT_EQ(program["ranks"][1]["actions"].back(), "STEP");
  const Json memory = parse_json(show("memory" + layout).output, "memory");
  EXPECT_EQ(memory["ranks"][0]["bytes"]["parameters"], 4 * 84288);
  const Json held = parse_json(show("layout" + layout).output, "layout");
  EXPECT_EQ(held["ranks"][1]["layers"].size(), 4u);
  EXPECT_EQ(held["ranks"][1]["sequences"], Json({16, 32}));  // the second half of global_batch = 32
  const Json traffic = parse_json(show("traffic" + layout).output, "traffic");
  EXPECT_EQ(traffic["synchronisation"]["fp32"]["gradient_bytes"], 4.0 * 84288);
  int64_t sent = 0;
  for (const Json& call : traffic["ranks"][0]["calls"]) {
    if (call["site"].get<std::string>().starts_with("reduce_grad")) sent += call["sent"]["1"].get<int64_t>();
  }
  EXPECT_EQ(sent, 4 * 84288);  // 2 (n - 1) / n S for n = 2
}

TEST(Show, DrawsAStepOverTime) {
  const support::ScopedFolder folder("draw-test");
  const std::string layout = " -n 2 --parallel.pp=2 --train.global_batch=4 --train.micro_batch=1 --model.preset=gpt2-test";
  const std::string grid = show("program --grid" + layout).output;
  EXPECT_THAT(grid, HasSubstr("rank 0  F0 F1 .  .  B0 -- F2 B1 --"));
  EXPECT_THAT(grid, HasSubstr("step 15 units, bubble 20 % ((p-1)/(m+p-1) of equal stages: 20 %)"));
  const std::string costs = (folder / "costs.toml").string();
  std::ofstream(costs) << "[forward]\nstages = [1e-3, 1e-3]\n[input]\nstages = [1e-3, 1e-3]\n[weight]\nstages = [1e-3, 1e-3]\n";
  const auto file = [&](const char* name) { return (folder / name).string(); };
  const Outcome drawn = show(cat("program", layout, " --svg ", file("a.svg"), " --html ", file("a.html"), " --trace ", file("a.json"),
                                 " --costs ", costs));
  EXPECT_EQ(drawn.code, 0) << drawn.output;
  EXPECT_THAT(drawn.output, HasSubstr("step 15 ms, bubble 20 %"));
  EXPECT_THAT(read_file(file("a.svg")), HasSubstr("</svg>"));
  EXPECT_THAT(read_file(file("a.html")), HasSubstr("<b>15 ms</b>"));
  EXPECT_GT(read_json(file("a.json"))["traceEvents"].size(), 20u);
  const Json numbers = parse_json(show(cat("program --json", layout, " --costs ", costs)).output, "numbers");
  EXPECT_NEAR(numbers["simulated"]["step"].get<double>(), 15e-3, 1e-12);
  EXPECT_NEAR(numbers["bubble_formula"].get<double>(), 0.2, 1e-12);
  EXPECT_EQ(numbers["schedule"], "1f1b");
  EXPECT_FALSE(numbers.contains("measured"));
  EXPECT_THAT(show(cat("program --json --grid", layout)).output, HasSubstr("LS1004"));
  EXPECT_THAT(show(cat("memory --json --costs ", costs, layout)).output, HasSubstr("this is memory"));
  EXPECT_THAT(show(cat("program", layout, " --costs ", costs)).output, HasSubstr("nothing is drawn with it"));
  EXPECT_THAT(show(cat("memory --grid", layout)).output, HasSubstr("draws a program, and not memory"));
  EXPECT_THAT(show(cat("program --grid --rank 0", layout)).output, HasSubstr("LS1004"));
  EXPECT_THAT(show(cat("program --grid --measured ", folder.path().string(), layout)).output, HasSubstr("no traced step in it"));
  EXPECT_THAT(show("schedules" + layout).output, HasSubstr("2 pipeline ranks, 4 microbatches"));
}

// Every block "<!-- lockstep show ... -->" followed by a text fence holds what the command prints.
TEST(Docs, QuoteWhatTheProgramPrints) {
  const std::filesystem::path docs = std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "docs" / "parallelism";
  const std::regex quote("<!-- lockstep show ([^\n]*) -->\n```text\n");
  int quotes = 0;
  for (const auto& page : std::filesystem::directory_iterator(docs)) {
    if (!page.is_regular_file()) continue;
    const std::string text = read_file(page.path());
    for (std::sregex_iterator it(text.begin(), text.end(), quote), end; it != end; ++it, ++quotes) {
      const size_t begin = static_cast<size_t>(it->position() + it->length());
      const std::string quoted = text.substr(begin, text.find("```", begin) - begin);
      EXPECT_EQ(quoted, show((*it)[1].str()).output) << page.path() << ": scripts/quote_output.py renews it";
    }
  }
  EXPECT_GE(quotes, 4);
}

}  // namespace
}  // namespace lockstep::apps
