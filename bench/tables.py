"""The report as Markdown: what docs/benchmarks.md shows."""

import planner
from cases import GROWTH, PIPELINE_MARKS, STATE_SPACES


def table(heads, rows):
    if not rows:
        return ""
    widths = [max(len(head), *(len(row[i]) for row in rows)) for i, head in enumerate(heads)]
    lines = [heads, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines)


def percent(share):
    return "-" if share is None else f"{share:.0%}"


def number(value, digits=0):
    return "-" if value is None else f"{value:.{digits}f}"


def ratio(found):
    """The median of the rounds, and their smallest and largest."""
    return f"{found['ratio']:.2f} ({found['smallest']:.2f}..{found['largest']:.2f})"


def peer_step(row):
    """The step of the peer and how ours compares; "-" where it failed."""
    if "peer" not in row:
        return ["-"] * 3
    return [number(row["peer_ms"]), ratio(row["peer_share"]), ratio(row["times_as_fast"])]


def peer_name(row):
    return row["peer"].removeprefix("pytorch ") if "peer" in row else "-"


def size(count):
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def single(report):
    heads = ["work", "precision", "Lockstep ms", "of GEMM limit", "fastest PyTorch", "ms", "of GEMM limit", "times as fast"]
    rows = [
        [
            row["work"], row["precision"], number(row["median_ms"]), percent(row["share_of_limit"]),
            peer_name(row), number(row["peer_ms"]), percent(row["peer_share_of_limit"]),
            ratio(row["times_as_fast"]),
        ]
        for row in report["comparisons"]
        if row["layout"] == "1x2" and "peer" in row
    ]
    return table(heads, rows)


def ranks(report):
    heads = ["work", "ranks", "data parallel", "ms", "of our own 1x2", "of our ring", "busiest rank's links", "times as fast as DDP"]
    rows = []
    for row in report["comparisons"]:
        if row["layout"] == "1x2" or row["tp"] > 1 or row["pp"] > 1 or row["ep"] > 1 or row["cp"] > 1 or row["zero"] or row["recompute"] != "none" or "share_of" not in row:
            continue
        shares = {name: ratio(found) for name, found in row["share_of"].items()}
        ring = next((text for name, text in shares.items() if "ring" in name), "-")
        moved = f"{row['busiest_rank_bytes'] / 1e6:.0f} MB a step"
        faster = ratio(row["times_as_fast"]) if "times_as_fast" in row else "-"
        how = row["program"].removeprefix("lockstep ")
        rows.append([row["work"], row["layout"], how, number(row["median_ms"]), shares["lockstep 1x2"], ring, moved, faster])
    return table(heads, rows)


def ddp(report):
    """What ranks cost PyTorch, beside what they cost us."""
    alone = {
        row["work"]: row["median_ms"]
        for row in report["cases"]
        if row["program"] == "pytorch eager" and row["precision"] == "fp32"
    }
    found = [row for row in report["cases"] if row["program"] == "pytorch ddp" and row["work"] in alone]
    rows = [
        [row["work"], row["layout"], number(row["median_ms"]), percent(alone[row["work"]] / row["median_ms"])] for row in found
    ]
    return table(["work", "ranks", "PyTorch DDP ms", "of PyTorch eager 1x2"], rows)


def verdict(found, mark):
    missing = mark - found["ratio"]
    return f"{mark:.2f} reached" if missing <= 0 else f"{mark:.2f} short by {missing:.3f}"


def tensor(report):
    heads = ["work", "ranks", "ms", "of our own 1x2", "mark", "waiting", "busiest rank's links"]
    heads += ["DTensor ms", "of PyTorch eager 1x2", "times as fast"]
    waits = {(row["work"], row["layout"]): row["exposed"] for row in report["cases"] if row["tp"] > 1 and row["exposed"]}
    rows = []
    for row in report["comparisons"]:
        if row["tp"] == 1 or row["model"] in STATE_SPACES:
            continue
        share = row["share_of"]["lockstep 1x2"]
        waited = waits.get((row["work"], row["layout"]), {})
        rows.append(
            [
                row["work"], row["layout"], number(row["median_ms"]), ratio(share), verdict(share, row["mark"]),
                f"{sum(waited.values()):.1%}", f"{row['busiest_rank_bytes'] / 1e6:.0f} MB a step",
                *peer_step(row),
            ]
        )
    return table(heads, rows)


def pipeline(report):
    heads = ["work", "ranks and schedule", "ms", "of our own 1x2", "waiting", "busiest rank's links", "PyTorch ms", "times as fast"]
    waits = {(row["work"], row["layout"]): row["exposed"] for row in report["cases"] if row["pp"] > 1 and row["exposed"]}
    rows = [
        [
            row["work"], row["layout"], number(row["median_ms"]), ratio(row["share_of"]["lockstep 1x2"]),
            f"{sum(waits.get((row['work'], row['layout']), {}).values()):.1%}",
            f"{row['busiest_rank_bytes'] / 1e6:.0f} MB a step", number(row["peer_ms"]), ratio(row["times_as_fast"]),
        ]
        for row in report["comparisons"]
        if row["pp"] > 1 and "peer" in row
    ]
    return table(heads, rows)


def at_most(value, mark, digits):
    return f"{mark:.{digits}f} {'reached' if value <= mark else f'missed by {value - mark:.{digits}f}'}"


def theory(report):
    """Marks hold where every stage has a core; simulations know nothing of ranks that share one."""
    heads = ["schedule", "pp", "ms", "bubble", "ideal ms", "of ideal", "mark", "of own work", "mark", "simulated ms", "of measured", "mark"]
    heads += ["replayed", "overhead us", "median", "mark"]
    rows = []
    for row in report["pipelines"]:
        own_core = row["pp"] <= report["machine"]["cores"]
        over, share, own = row.get("over_ideal"), row["simulated_share"], row.get("over_work")
        off = abs(share["ratio"] - 1)
        rows.append(
            [
                row["layout"].partition(f"pp{row['pp']} ")[2], str(row["pp"]), number(row["measured_ms"]),
                "-" if row["bubble"] is None else f"{row['bubble']:.1%}", number(row.get("ideal_ms")), ratio(over) if over else "-",
                at_most(over["ratio"], PIPELINE_MARKS["theory"], 2) if over and own_core else "-",
                ratio(own) if own else "-", at_most(own["ratio"], PIPELINE_MARKS["theory"], 2) if own and own_core else "-",
                number(row["simulated_ms"]), ratio(share), at_most(off, PIPELINE_MARKS["simulated"], 2) if own_core else "-",
                f"{row['replayed_share']['ratio']:.2f}", number(row["overhead_us"], 1), number(row["overhead_median_us"], 1),
                at_most(row["overhead_us"], PIPELINE_MARKS["overhead_us"], 0) if own_core else "-",
            ]
        )
    return table(heads, rows)


def recompute(report):
    rows = [
        [row["work"], row["recompute"], number(row["median_ms"]), ratio(row["share_of"]["lockstep 1x2"])]
        for row in report["comparisons"]
        if row["recompute"] != "none"
    ]
    return table(["work", "recompute", "ms", "as fast as none"], rows)


def zero(report):
    heads = ["work", "ranks", "zero", "ms", "of our own 1x2", "mark", "waiting", "busiest rank's links"]
    heads += ["PyTorch", "ms", "of PyTorch eager 1x2", "times as fast"]
    waits = {(row["work"], row["layout"], row["zero"]): row["exposed"] for row in report["cases"] if row["exposed"]}
    rows = []
    for row in report["comparisons"]:
        if not row["zero"]:
            continue
        share = row["share_of"]["lockstep 1x2"]
        waited = waits.get((row["work"], row["layout"], row["zero"]), {})
        rows.append(
            [
                row["work"], row["layout"], str(row["zero"]), number(row["median_ms"]), ratio(share),
                verdict(share, row["mark"]), f"{sum(waited.values()):.1%}", f"{row['busiest_rank_bytes'] / 1e6:.0f} MB a step",
                peer_name(row), *peer_step(row),
            ]
        )
    return table(heads, rows)


def experts(report):
    waits = {(row["work"], row["layout"]): row["exposed"] for row in report["cases"] if row["ep"] > 1 and row["exposed"]}
    rows = [
        [
            row["work"], row["layout"], number(row["median_ms"]), ratio(row["share_of"]["lockstep 1x2"]),
            verdict(row["share_of"]["lockstep 1x2"], row["mark"]), f"{sum(waits.get((row['work'], row['layout']), {}).values()):.1%}",
            f"{row['busiest_rank_bytes'] / 1e6:.0f} MB a step",
        ]
        for row in report["comparisons"]
        if row["ep"] > 1
    ]
    return table(["work", "ranks", "ms", "of our own 1x2", "mark", "waiting", "busiest rank's links"], rows)


def context(report):
    heads = ["work", "ranks and mode", "ms", "of our own 1x2", "mark", "waiting", "busiest rank's links"]
    heads += ["gathered keys in PyTorch, ms", "of PyTorch eager 1x2", "times as fast"]
    waits = {(row["work"], row["layout"]): row["exposed"] for row in report["cases"] if row["cp"] > 1 and row["exposed"]}
    rows = []
    for row in report["comparisons"]:
        if row["cp"] == 1 or row["model"] in STATE_SPACES:
            continue
        share = row["share_of"]["lockstep 1x2"]
        rows.append(
            [
                row["work"], row["layout"], number(row["median_ms"]), ratio(share), verdict(share, row["mark"]) if row["mark"] else "-",
                f"{sum(waits.get((row['work'], row['layout']), {}).values()):.1%}",
                f"{row['busiest_rank_bytes'] / 1e6:.0f} MB a step", *peer_step(row),
            ]
        )
    return table(heads, rows)


def state_spaces(report):
    """A Mamba-2 over two ranks; what it takes on one rank is in the table of one rank."""
    waits = {(row["work"], row["layout"]): row["exposed"] for row in report["cases"] if row["exposed"]}
    rows = [
        [
            row["work"], row["layout"], number(row["median_ms"]), ratio(row["share_of"]["lockstep 1x2"]),
            verdict(row["share_of"]["lockstep 1x2"], row["mark"]), f"{sum(waits.get((row['work'], row['layout']), {}).values()):.1%}",
            f"{row['busiest_rank_bytes'] / 1e6:.0f} MB a step",
        ]
        for row in report["comparisons"]
        if row["model"] in STATE_SPACES and row["tp"] * row["cp"] > 1
    ]
    return table(["work", "ranks", "ms", "of our own 1x2", "mark", "waiting", "busiest rank's links"], rows)


def growth(report):
    """Time of a token as sequences grow: 1.00 at all lengths is time that grows linearly with the length."""
    found = {(row["model"], row["tokens"]): row["median_ms"] for row in report["comparisons"] if row["model"] in GROWTH}
    lengths = sorted({tokens for _, tokens in found})
    rows = []
    for tokens in lengths:
        cells = [str(tokens)]
        for model in GROWTH:
            ms, first = found.get((model, tokens)), found.get((model, lengths[0]))
            cells += [number(ms, 1), number(tokens / ms * 1000 if ms else None), number((ms / tokens) / (first / lengths[0]) if ms and first else None, 2)]
        rows.append(cells)
    heads = [f"{what}: {head}" for what in ("state space", "attention") for head in ("ms", "tokens/s", "time of a token, first = 1")]
    return table(["tokens", *heads], rows)


def imbalance(report):
    rows = [
        [str(row["ranks"]), row["what"], f"{row['of_rank']:.2f}", f"{row['of_expert']:.2f}", number(1e3 * row["seconds"]), ratio(row["slower"])]
        for row in report["imbalance"]
    ]
    return table(["ranks", "bias of the choice", "busiest rank / mean", "busiest expert / mean", "step ms", "over the even load"], rows)


def memory(report):
    heads = ["work", "ranks", "zero", "one rank MiB", "largest rank MiB", "predicted MiB", "off by", "PyTorch", "MiB"]
    rows = []
    for row in report["comparisons"]:
        if not row["zero"]:
            continue
        one, ours, predicted = (row[name] / 2**20 for name in ("one_rank_bytes", "peak_bytes", "predicted_bytes"))
        peer = number(row["peer_bytes"] / 2**20, 1) if "peer" in row else "-"
        rows.append(
            [
                row["work"], row["layout"], str(row["zero"]), number(one, 1), number(ours, 1), number(predicted, 1),
                f"{ours / predicted - 1:+.1%}", peer_name(row), peer,
            ]
        )
    return table(heads, rows)


def exposed(report):
    rows = [
        [row["work"], f"{row['layout']}{' zero ' + str(row['zero']) if row['zero'] else ''}", what, f"{share:.1%}",
         number(share * row["median_ms"], 1)]
        for row in report["cases"]
        if row["tp"] > 1 or row["pp"] > 1 or row["ep"] > 1 or row["cp"] > 1 or row["zero"]
        for what, share in row["exposed"].items()
    ]
    return table(["work", "ranks", "rank 0 waits for", "of a step", "ms"], rows)


def generation(report):
    heads = ["model", "batch", "program", "ranks", "prefill ms", "tokens/s", "of transformers", "of our own 1x2", "mark"]
    heads.append("in communication")
    rows = []
    for row in report["generate"]:
        over_peer, over_one = row.get("over_peer"), row.get("over_one_rank")
        mark = verdict(over_one or over_peer, row["mark"][1]) if "mark" in row else "-"
        rows.append(
            [
                row["model"], str(row["batch"]), row["program"], row["layout"], number(row["prefill_ms"]),
                number(row["tokens_per_s"]), ratio(over_peer) if over_peer else "-", ratio(over_one) if over_one else "-",
                mark, percent(row.get("communication")),
            ]
        )
    return table(heads, rows)


def cases(report):
    heads = ["work", "precision", "ranks", "program", "median ms", "fastest", "tokens/s", "of GEMM limit", "rounds"]
    rows = [
        [
            row["work"], row["precision"], row["layout"], row["program"], number(row["median_ms"]),
            number(row["fastest_ms"]), number(row["tokens_per_s"]), percent(row["share_of_limit"]), str(row["rounds"]),
        ]
        for row in report["cases"]
    ]
    return table(heads, rows)


def startup(report):
    heads = ["work", "precision", "program", "seconds to the first step", "page faults a step", "waiting for data"]
    rows = [
        [
            row["work"], row["precision"], row["program"], number(row["startup_s"], 1),
            number(row["faults_per_step"]), "-" if row["data_wait"] is None else f"{row['data_wait']:.2%}",
        ]
        for row in report["cases"]
        if row["layout"] == "1x2"
    ]
    return table(heads, rows)


def gemm(report):
    heads = ["model", "precision", "product", "m x n x k", "GFLOP/s", "path", "best torch.mm", "best oneDNN"]
    rows = []
    for limit in report["gemm"]:
        for row in limit["shapes"]:
            best = {
                name: max((rate for path, rate in row["paths"].items() if path.startswith(name)), default=None)
                for name in ("mm", "onednn")
            }
            rows.append(
                [
                    f"{limit['model']}, {limit['tokens']} tokens", limit["precision"], f"{row['name']} {row['part']}",
                    f"{row['m']} x {row['n']} x {row['k']}", number(row["flops"] / row["seconds"] / 1e9), row["path"],
                    *(number(best[name] / 1e9) if best[name] else "-" for name in ("mm", "onednn")),
                ]
            )
    return table(heads, rows)


def gemm_rates(report):
    rows = [[limit["model"], str(limit["tokens"]), limit["precision"], number(limit["rate"] / 1e9)] for limit in report["gemm"]]
    return table(["model", "tokens a step", "precision", "GEMM limit, GFLOP/s"], rows)


def collectives(report):
    heads = ["ranks", "tensor", "Lockstep us", "Gloo us", "times as fast", "floor us", "of floor", "floor by copies us", "of it"]
    rows = [
        [
            str(row["ranks"]), size(row["bytes"]), number(row["lockstep_us"]), number(row["gloo_us"]),
            ratio(row["times_as_fast"]), number(row.get("floor_us")), percent(row.get("share_of_floor")),
            number(row.get("copies_us")), percent(row.get("share_of_copies")),
        ]
        for row in report["collectives"]
    ]
    return table(heads, rows)


def tokenizer(report):
    rows = [
        [
            f"{row['megabytes']:.1f} MB", number(row["lockstep_mb_per_s"], 1), number(row["peer_mb_per_s"], 1), row["peer"],
            ratio(row["times_as_fast"]),
        ]
        for row in report["tokenizer"]
    ]
    return table(["text", "Lockstep MB/s", "Hugging Face MB/s", "by", "times as fast"], rows)


def adamw(report):
    rows = [
        [
            f"{row['elements'] / 1e6:.0f} M", str(row["threads"]), number(1e3 * row["lockstep_seconds"], 2),
            number(1e3 * row["torch_seconds"], 2), ratio(row["times_as_fast"]),
        ]
        for row in report["adamw"]
    ]
    return table(["elements", "threads", "Lockstep ms", "PyTorch fused ms", "times as fast"], rows)


def replicas(report):
    rows = [
        [
            row["model"], str(row["ranks"]), number(1e3 * row["step_seconds"]), number(1e3 * row["comparison_seconds"]), str(row["every"]),
            f"{row['share']['ratio']:.3%} ({row['share']['smallest']:.3%}..{row['share']['largest']:.3%})",
        ]
        for row in report["replicas"]
    ]
    return table(["model", "ranks of one thread", "step ms", "comparison ms", "every steps", "of a step"], rows)


def pages(report):
    rows = [
        [f"show {row['page']}", f"{row['ranks']:,}", f"{row['ms']['ratio']:.0f} ({row['ms']['smallest']:.0f}..{row['ms']['largest']:.0f})", number(row["mb"])]
        for row in report["pages"]
    ]
    return table(["page", "ranks", "ms", "MB at most"], rows)


def planner_steps(report):
    return table(*planner.cells(report["planner"]))


def searches(report):
    rows = [
        [row["model"], f"{row['devices']:,}", f"{row['candidates']:,}", "{ratio:.2f} ({smallest:.2f}..{largest:.2f})".format(**row["seconds"])] for row in report["search"]
    ]
    return table(["model", "devices", "candidates", "seconds"], rows)


PARTS = (
    ("One rank, two threads", single),
    ("Several ranks of one thread on the same two cores", ranks),
    ("What ranks cost PyTorch", ddp),
    ("One copy of the model on several ranks of one thread", tensor),
    ("One copy of the model in stages on several ranks of one thread", pipeline),
    ("Pipelines against theory", theory),
    ("States shared out", zero),
    ("Experts shared out over several ranks of one thread", experts),
    ("One sequence in parts on several ranks of one thread", context),
    ("A state space on two ranks of one thread", state_spaces),
    ("One layer on longer sequences: a state space beside attention", growth),
    ("What an uneven load of experts costs", imbalance),
    ("What a rank has allocated at most", memory),
    ("Blocks that keep less for their backward", recompute),
    ("What its ranks wait for", exposed),
    ("AdamW", adamw),
    ("Comparing replicas", replicas),
    ("Pages of very many ranks", pages),
    ("Predicted steps", planner_steps),
    ("Search for a layout", searches),
    ("Generation, greedy", generation),
    ("All-reduce between processes", collectives),
    ("Tokenizer, one thread", tokenizer),
    ("Start-up, page faults, data", startup),
    ("GEMM limit", gemm_rates),
    ("Matrix products on two threads", gemm),
    ("All cases", cases),
)


def markdown(report):
    parts = [setting(report)]
    for title, part in PARTS:
        if text := part(report):
            parts.append(f"### {title}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def setting(report):
    on = report["machine"]
    lines = [
        f"`{report['command']}`, {report['seconds']:.0f} s.",
        f"{on['cpu']}, {on['cores']} cores, {on['system']};",
        f"load {report['load_before']:.1f} before and {report['load_after']:.1f} after (1-minute average).",
        f"PyTorch {report['torch']} with {report['peer_allocator']}; Lockstep {report['commit']} as built.",
        f"Noise: the middle half of a case's steps lies within {report['noise']:.1%} of its median (median over cases)."
        if report["noise"] is not None
        else "",
    ]
    if report["quick"]:
        lines.append("**--quick: tiny steps, no measurement.**")
    if report["load_before"] > 0.5:
        lines.append("**Other programs were running: the figures are noisy.**")
    return "\n".join(line for line in lines if line)
