"""Greedy generation from one Hugging Face directory of random weights: Lockstep beside transformers.

Both read the same prompts and must begin with the same tokens; later two logits may lie as near as rounding. `prefill` lasts
until every sequence has its first token; tokens per second are those of all tokens after it over their time.
"""

import json
import os
import random
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from cases import VOCABULARY
from programs import BenchError, run, run_peer, spread

MODELS = ("gpt2-124m", "llama-15m")
BATCHES = (1, 8)
CHECKED = 16  # tokens of each text
OVER_PEER, OVER_ONE_RANK = 1.5, 1.0  # aimed at: one rank over transformers, tp2 over one rank


@dataclass(frozen=True)
class Layout:
    program: str  # lockstep | transformers
    tp: int = 1
    threads: int = 2  # of one rank

    def name(self):
        return f"{self.tp}x{self.threads}{f' tp{self.tp}' if self.tp > 1 else ''}"


ONE, SPLIT, PEER = Layout("lockstep"), Layout("lockstep", tp=2, threads=1), Layout("transformers")


@dataclass(frozen=True)
class Texts:
    prompt_tokens: int
    new_tokens: int


def texts_of(setting):
    return Texts(16, 4) if setting.quick else Texts(64, 32)


def write_prompts(path, model, batch, tokens):
    drawn = random.Random(1234)
    rows = [{"ids": [drawn.randrange(VOCABULARY[model]) for _ in range(tokens)]} for _ in range(batch)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def by_lockstep(directory, prompts, texts, layout, setting):
    command = [setting.program("lockstep"), "generate", "--model", f"hf:{directory}", "--prompt-file", str(prompts)]
    command += ["--max-new-tokens", str(texts.new_tokens), "--ignore-eos", "--json", "--threads", str(layout.threads)]
    command += ["-n", str(layout.tp), f"--parallel.tp={layout.tp}"] if layout.tp > 1 else []
    said = json.loads(run(command, dict(os.environ), setting.deadline).splitlines()[-1])
    timing = said["timing"]
    return {
        "prefill_s": timing["prefill_tokens"] / timing["prefill_tokens_per_second"],
        "tokens_per_s": timing["decode_tokens_per_second"],
        "communication": timing.get("communication_share"),
        "tokens": [row["ids"][texts.prompt_tokens :] for row in said.get("results", [said])],
    }


def by_transformers(directory, prompts, texts, layout, setting):
    options = [directory, "--prompt-file", prompts, "--max-new-tokens", texts.new_tokens, "--threads", layout.threads]
    options += ["--repetitions", 1] if setting.quick else []
    said = run_peer("generate_hf.py", options, setting, layout.threads)
    return {"prefill_s": said["first_token_seconds"], "tokens_per_s": said["tokens_per_s"], "tokens": said["tokens"]}


def measure(setting, rounds):
    """{(model, batch, layout): [what a round found]}"""
    texts, found, directories = texts_of(setting), defaultdict(list), {}
    for model in MODELS:
        directories[model] = setting.scratch / f"hf-{model}"
        run_peer("random_hf.py", [model, directories[model]], setting, 2)
        for batch in BATCHES:
            write_prompts(setting.scratch / f"{model}-{batch}.jsonl", model, batch, texts.prompt_tokens)
    tasks = [(model, batch, layout) for model in MODELS for batch in BATCHES for layout in (ONE, SPLIT, PEER)]
    for number in range(rounds):
        for task in tasks if number % 2 == 0 else reversed(tasks):
            model, batch, layout = task
            program = by_transformers if layout.program == "transformers" else by_lockstep
            result = program(directories[model], setting.scratch / f"{model}-{batch}.jsonl", texts, layout, setting)
            found[task].append(result)
            name = f"generate {model} batch {batch} {layout.program} {layout.name()}"
            print(f"round {number + 1}  {name:<56} {result['tokens_per_s']:8.0f} tok/s", flush=True)
    check_tokens(found)
    return found


def check_tokens(found):
    """Programs that do not begin alike have not done the same work."""
    for (model, batch, layout), results in found.items():
        expected = [text[:CHECKED] for text in found[model, batch, PEER][0]["tokens"]]
        for result in results:
            if [text[:CHECKED] for text in result["tokens"]] != expected:
                raise BenchError(f"{model}, batch {batch}: lockstep {layout.name()} and transformers do not say the same tokens")


def over(found, mine, other):
    """How many times the tokens per second of `other`, round by round."""
    return spread([a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(found[mine], found[other])])


def same_tokens(found, task):
    """The share of the tokens that transformers says too, at the same place."""
    theirs = found[task[0], task[1], PEER][0]["tokens"]
    pairs = [pair for text, other in zip(found[task][0]["tokens"], theirs) for pair in zip(text, other)]
    return sum(a == b for a, b in pairs) / len(pairs)


def row_of(found, task, texts):
    model, batch, layout = task
    results = found[task]
    row = {"model": model, "batch": batch, "layout": layout.name(), "program": layout.program, "tp": layout.tp}
    row |= {"prompt_tokens": texts.prompt_tokens, "new_tokens": texts.new_tokens}
    row["prefill_ms"] = median(result["prefill_s"] for result in results) * 1000
    row["tokens_per_s"] = median(result["tokens_per_s"] for result in results)
    if layout.program == "lockstep":
        row["over_peer"] = over(found, task, (model, batch, PEER))
        row["same_tokens"] = same_tokens(found, task)
        row["mark"] = ["transformers", OVER_PEER]
    if layout.tp > 1:
        row["over_one_rank"] = over(found, task, (model, batch, ONE))
        row["communication"] = median(result["communication"] for result in results)
        row["mark"] = ["one rank", OVER_ONE_RANK]
    return row


def rows(found, setting):
    return [row_of(found, task, texts_of(setting)) for task in found]
