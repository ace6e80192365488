#include "apps/lockstep/verbs.h"

#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::apps {
namespace {

constexpr std::string_view kSources = "A MODEL or TOKENIZER is a directory, a file in it, or hf:DIR.\n";

}  // namespace

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> table = {
      {.name = "chat",
       .help = "talk with a model that has a chat template",
       .usage = "[--model] RUN | STEP | MODEL [--system TEXT] [--raw] [--temperature T]",
       .flags = {{"model", "MODEL", "a run, one of its steps, or a model directory of Hugging Face"},
                 {"system", "TEXT", "what the model is told before you speak"},
                 {"raw", "", "no template: the model continues all that was written so far"},
                 {"context", "N", "tokens of the whole talk at most (default 4096, or what the model can read)"},
                 {"max-new-tokens", "N", "tokens of an answer at most (default 512)"},
                 {"temperature", "T", "0 = always the most likely token (default); 1 = as the model says"},
                 {"top-k", "K", "sample from the K most likely tokens only"},
                 {"top-p", "P", "sample from the most likely tokens that together have probability P"},
                 {"min-p", "P", "sample from tokens at least P times as likely as the most likely one"},
                 {"repetition-penalty", "X", "divide the logits of tokens seen before by X (default 1)"},
                 {"seed", "N", "of sampling (default 1234)"},
                 {"stop", "TEXT", "end an answer before this text; may be written several times"},
                 {"threads", "N", "compute threads (default: the cores)"}}},
      {.name = "checkpoint",
       .help = "say what a checkpoint or a Hugging Face model holds and how two differ; make the one of the other",
       .usage = "inspect|verify RUN | STEP | MODEL\n"
                "         checkpoint diff A B\n"
                "         checkpoint export RUN | STEP DIR --to hf [--dtype fp32|bf16] [--max-shard-size 5GB]",
       .flags = {{"to", "FORMAT", "what export writes: hf, a directory that transformers loads"},
                 {"dtype", "TYPE", "fp32 or bf16 for all tensors of an export (default: as saved)"},
                 {"max-shard-size", "SIZE", "of the tensors of one file of an export (default 5GB)"}},
       .has_json = true},
      {.name = "config",
       .help = "print the resolved configuration with the origin of each value, or the reference page",
       .usage = "show run.toml... | docs",
       .takes_config = true,
       .function = verb_config},
      {.name = "data",
       .help = "train a tokenizer, turn text into token files, say what a file is, fetch demo text",
       .usage = "tokenizer FILE... --out tokenizer.json [--vocab-size N]\n"
                "         data prepare FILE... --tokenizer TOKENIZER --out PREFIX [--no-append-eod]\n"
                "         data inspect PATH...\n"
                "         data demo --out FOLDER [--cache FOLDER]",
       .flags = {{"out", "PATH", "what is written: a file, a PREFIX of .bin and .idx, or a folder"},
                 {"vocab-size", "N", "ids of the trained tokenizer (default 4096)"},
                 {"tokenizer", "TOKENIZER", "what to encode with"},
                 {"no-append-eod", "", "no <|endoftext|> behind each document"},
                 {"cache", "FOLDER", "where demo keeps what it fetches (default FOLDER/source)"}},
       .function = verb_data},
      {.name = "doctor",
       .help = "name each missing or mismatched piece and the command that mends it",
       .usage = "[run.toml...] [-n N]",
       .has_json = true,
       .takes_config = true,
       .function = verb_doctor},
      {.name = "generate",
       .help = "continue a prompt with the model of a run's checkpoint",
       .usage = "[--model] RUN | STEP | run.toml | MODEL (--prompt TEXT | --prompt-ids 1,2,3 | --prompt-file FILE)...\n"
                "         [-n N] [--max-new-tokens N] [--temperature T]",
       .flags = {{"model", "MODEL", "a run, one of its steps, or a model directory of Hugging Face",
                  "each host may have its own copy; what it holds is compared"},
                 {"prompt", "TEXT", "the text to continue; needs the model's tokenizer. Several: all at once"},
                 {"prompt-ids", "IDS", "the same as token ids: 1,2,3"},
                 {"prompt-file", "FILE", "a prompt a line; in *.jsonl an object a line with \"prompt\" or \"ids\"",
                  "each host may have its own copy; what it holds is compared"},
                 {"max-new-tokens", "N", "tokens to add at most (default 64, or what fits)"},
                 {"temperature", "T", "0 = always the most likely token (default); 1 = as the model says"},
                 {"top-k", "K", "sample from the K most likely tokens only"},
                 {"top-p", "P", "sample from the most likely tokens that together have probability P"},
                 {"min-p", "P", "sample from tokens at least P times as likely as the most likely one"},
                 {"repetition-penalty", "X", "divide the logits of tokens seen before by X (default 1)"},
                 {"seed", "N", "of sampling (default 1234)"},
                 {"stop", "TEXT", "end before this text; may be written several times"},
                 {"ignore-eos", "", "go on behind the token that ends a text"},
                 {"threads", "N", "compute threads of a rank (default: its share of the cores)",
                  "hosts have different numbers of cores"}},
       .has_json = true,
       .takes_config = true,
       .on_ranks = true,
       .function = verb_generate},
      {.name = "launch",
       .help = "print a script or manifest that trains on a cluster, and starts again after code 75",
       .usage = "--print slurm|k8s|mpirun|torchrun run.toml... [-n N] [--nodes M] [--time DURATION] [--image NAME --claim NAME]",
       .flags = {{"print", "SYSTEM", "what starts the ranks: slurm, k8s, mpirun or torchrun"},
                 {"nodes", "M", "hosts; -n is the number of all ranks (default 1)"},
                 {"time", "DURATION", "time limit of a Slurm job: 3h50m"},
                 {"image", "NAME", "k8s: a container image with lockstep"},
                 {"claim", "NAME", "k8s: the volume claim that holds configuration, data and runs"}},
       .takes_config = true,
       .function = verb_launch},
      {.name = "plan",
       .help = "answer before anything runs: does it fit, how long is a step, what is on every link, which layout is better",
       .usage = "run.toml... | --model.preset=NAME --cluster CLUSTER [-n N] [--json | --table] [--html FILE] [--fill[=FILE]]\n"
                "         plan run.toml... --cluster CLUSTER [--fixed tp=8] [--why-not tp=8,pp=4] [--what-if] [--slow node=3:0.8]\n"
                "         plan run.toml... --cluster CLUSTER --cluster CLUSTER\n"
                "         plan run.toml... --cluster here --calibrate RUN --machine FILE\n"
                "         plan --runs FILE --json\n"
                "         plan [--runs FILE] --evidence[=FILE.svg]",
       .flags = {{"cluster", "CLUSTER", "8xh100, '64 nodes of 8xh200, leaf-spine 400G, 2:1, $2.5/h', cluster.toml, a preset, or here: this machine; several: "
                                        "side by side"},
                 {"table", "", "print every stage, and all layouts that none beats in time, memory and devices at once"},
                 {"html", "FILE", "write a page as well: memory, the step over time, the network, layouts, what-ifs"},
                 {"fill", "[=FILE]", "write a run.toml with the layout (without =FILE: print that alone)"},
                 {"why-not", "FIELDS", "the best layout with tp=8,pp=4 beside the best of all; may be given several times"},
                 {"fixed", "FIELDS", "search only layouts with tp=8,zero=1"},
                 {"spare", "X", "share of each device's memory that layouts leave (default 0.05, as much as predictions of memory err by)"},
                 {"order", "ORDER", "neighbours among devices: dp-pp, replicas of a stage (default), or pp-dp, stages of a pipeline"},
                 {"fp8", "", "matrix products of linears in FP8"},
                 {"imbalance", "X", "of experts: load of the busiest rank over the mean (default 1)"},
                 {"what-if", "", "this layout with one choice changed, on other networks and devices, with something slow"},
                 {"slow", "WHAT", "node=3:0.8 or nic=3:0.5: a node, or its NICs, at a share of full speed; may be given several times"},
                 {"tokens", "N", "tokens of the whole run, 15e12: how long it takes, what it costs"},
                 {"stack", "FILE", "constants between hardware and step in the place of the usual ones: a table [stack]"},
                 {"calibrate", "RUN", "fit these constants to a run with trace.steps; may be given several times"},
                 {"machine", "FILE", "write the cluster with its constants, measured or fitted: a file for --cluster and for train --machine"},
                 {"runs", "FILE", "published runs, or your own in that form: with --json a prediction of each, a line of JSON"},
                 {"evidence", "[=FILE]", "these runs, predicted against measured: errors by source, order of layouts; FILE.svg: a picture, FILE.md: a page"}},
       .has_json = true,
       .takes_config = true,
       .function = verb_plan},
      {.name = "show",
       .help = "print what will run: the program of a rank, who holds what, predicted memory and traffic",
       .usage = "program|layout|block|context|memory|traffic|schedules [run.toml...] [-n N] [--rank R]\n"
                "         show program --grid | --svg FILE | --html FILE | --trace FILE | --json [--costs FILE] [--measured FOLDER]",
       .flags = {{"rank", "R", "this rank alone"},
                 {"full", "", "every layer of a long program, every bucket of the traffic, by itself"},
                 {"draw", "", "with program: a drawing of computing and communication over time"},
                 {"timeline", "", "with memory: a chart of what the device holds in each action"},
                 {"ranks-per-node", "N", "with layout: places on a server (default 8)"},
                 {"documents", "N,N,...", "with context: lengths of the documents of a sequence"},
                 {"sequences", "N", "with context: the work of N sequences of data.train"},
                 {"flops", "F", "with context: FLOP/s of a rank in attention"},
                 {"bandwidth", "B", "with context: bytes/s of a rank's link"},
                 {"grid", "", "with program: the step over time as text, a row per pipeline rank"},
                 {"svg", "FILE", "with program: write the step over time as a picture"},
                 {"html", "FILE", "with program: write a page about the step: picture, bubble, memory, ranks"},
                 {"trace", "FILE", "with program: write the times of all actions as a Chrome trace (Perfetto)"},
                 {"costs", "FILE", "times of actions for these: docs/parallelism/pipeline.md (default: equal stages)"},
                 {"measured", "FOLDER", "the same from the last traced step in RUN/trace, which --html draws beside it"}},
       .has_json = true,
       .takes_config = true,
       .function = verb_show},
      {.name = "train",
       .help = "train a model, alone or on several ranks; goes on where the run stopped",
       .usage = "run.toml... [-n N] [--stop-after DURATION] [--max-restarts N] [--machine FILE]",
       .flags = {{"stop-after", "DURATION", "save and leave with code 75 after this time: 3h50m", "only the clock of rank 0 counts"},
                 {"max-restarts", "N", "start all ranks again when one is lost, N times at most (default 0)"},
                 {"machine", "FILE", "this machine as `lockstep plan --machine` wrote it: tell its prediction beside the measured step"}},
       .takes_config = true,
       .on_ranks = true,
       .function = verb_train},
      {.name = "verify",
       .help = "train a few steps under the layout and on one rank, and compare every gradient and update",
       .usage = "run.toml... [-n N] [--steps K] [--free K]",
       .flags = {{"steps", "K", "optimizer steps to compare (default 3)"},
                 {"free", "K", "of them at the end, layout and twin are left alone (default 2, with fewer than 3 steps 0)"}},
       .has_json = true,
       .takes_config = true,
       .on_ranks = true,
       .function = verb_verify},
  };
  return table;
}

const Verb& find_verb(const std::string& name) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) {
    if (verb.name == name) return verb;
    names.emplace_back(verb.name);
  }
  const std::string near = nearest(name, names);
  reject("LS1001", cat("unknown verb '", name, "'"),
         near.empty() ? cat("the verbs are ", join(names, ", ")) : cat("did you mean '", near, "'?"));
}

std::string overview() {
  std::string text =
      "lockstep trains, plans and runs large transformers on one machine or many.\n\n"
      "  lockstep <verb> [run.toml...] [-n N] [--section.field=value ...]\n\n";
  for (const Verb& verb : verbs()) text += cat("  ", pad_right(verb.name, 12), verb.help, "\n");
  text += cat("\n", kSources);
  return text + "\nlockstep <verb> --help tells more; lockstep --version names the version.\n";
}

std::string help_text(const Verb& verb) {
  std::string text = cat("lockstep ", verb.name, " ", verb.usage, "\n  ", verb.help, "\n\n");
  const auto line = [&](const std::string& flag, std::string_view help) {
    text += cat("    ", pad_right(flag, 28), help, "\n");
  };
  for (const Flag& flag : verb.flags) {
    const char* between = flag.value.empty() || flag.optional_value() ? "" : " ";
    line(cat("--", flag.name, between, flag.value), flag.help);
  }
  if (verb.takes_config)
    line("-n N", verb.name == "launch" ? "ranks of the job" : verb.name == "plan" ? "devices (default: all of the cluster, or as parallel.dp says)" : "ranks to start on this machine");
  if (verb.on_ranks) {
    line("--rank R --world-size N", "this process is one rank of several that somebody starts,");
    line("--rendezvous HOST:PORT", "  which meet there; several hosts: --local-rank L --local-size M");
  }
  if (verb.has_json) line("--json", "one JSON object on standard output");
  line("--help", "this text");
  if (verb.usage.find("MODEL") != std::string::npos || verb.usage.find("TOKENIZER") != std::string::npos) text += cat("\n  ", kSources);
  if (verb.takes_config) text += "\n  A configuration is files and overrides, later wins:\n" + config::fields_help();
  return text;
}

}  // namespace lockstep::apps
