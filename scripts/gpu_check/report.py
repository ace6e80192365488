"""The report: data, the same as text, and what of the logs travels."""
import json
import os
import traceback
from pathlib import Path

LOG_BYTES = 4 << 20  # of a log, its end
FILE_BYTES = 15 << 20


def write_file(path, text):
    """Whole or not at all: whoever is killed meanwhile leaves the one before."""
    part = Path(f"{path}.part")
    part.write_text(text)
    os.replace(part, path)


def write(folder, report):
    """report.json and report.txt."""
    write_file(folder / "report.json", json.dumps(report, indent=1) + "\n")
    write_file(folder / "report.txt", whatever(text, report)[:FILE_BYTES])


def whatever(make, report):
    """A text, or why it could not be made: report.json has all of it anyway."""
    try:
        return make(report)
    except Exception:
        return f"verdict: {report['verdict']}\nthe rest is in report.json, since this text failed:\n{traceback.format_exc()}"


def shorten(path):
    """A log without its beginning, where it is too long to travel."""
    if path.exists() and path.stat().st_size > LOG_BYTES:
        with open(path, "rb") as file:
            file.seek(-LOG_BYTES, os.SEEK_END)
            kept = file.read()
        path.write_bytes(b"... the beginning is left out\n" + kept)


def text(report):
    """Summary first, then what failed."""
    return "\n".join(summary(report)) + "\n\n" + "\n".join(failures(report)) + "\n"


def on_screen(report):
    """What failed, then the summary: the end of an output is what is kept of it."""
    return whatever(lambda report: "\n".join(failures(report))[-6000:] + "\n\n" + "\n".join(summary(report)) + "\n", report)


def indented(said):
    return ["    " + line for line in said.splitlines()]


def failures(report):
    parts = report["parts"]
    lines = []
    for name, part in parts.items():
        if "why" in part:
            lines += [f"== {name}", *indented(part["why"])]
        for result in part.get("results", []):
            if result["result"] in ("failed", "cut"):
                after = f"{result['result']} after {result['seconds']:.1f} s"
                lines += [f"== {result['name']}: {after}", *indented(result["said"])]
                for case in result.get("cases", {}).get("failing", []):
                    lines += [f"  -- alone: {case['name']}: {case['result']}", *indented(case["said"])]
    for what, why in parts.get("measure", {}).get("figures", {}).get("failed", {}).items():
        lines += [f"== measure: {what}", *indented(why)]
    return lines


def summary(report):
    lines = [f"verdict: {report['verdict']}   ({report['seconds']:.0f} s of {report['budget']:.0f})", *machine(report["machine"])]
    parts = report["parts"]
    if "build" in parts:
        lines += building(parts["build"])
    for name in ("tests", "sanitizer"):
        if name in parts:
            lines += testing(name, parts[name])
    if "measure" in parts:
        lines += measuring(parts["measure"].get("figures", {}))
    lines += ["", *(f"not done: {what}: {why}" for what, why in report["not_done"])] if report["not_done"] else []
    return lines


def machine(facts):
    gpu, torch = facts["gpu"], facts["torch"]
    seen = f"{gpu['name']}, {gpu['memory_mib']} MiB, compute capability {gpu['capability']}, driver {gpu['driver']}" if gpu else "none"
    return [
        f"commit   {facts['commit']}",
        f"GPU      {seen}",
        f"host     {facts['cores']} cores, {facts['memory_gib']:.0f} GiB, {facts['system']}",
        f"PyTorch  {torch.get('version', 'none')}, CUDA {torch.get('cuda')}, {facts['python'] or 'no python with torch'}",
        f"tools    nvcc {facts['nvcc_version'] or 'none'}, g++ {facts['compiler'] or 'none'}, CMake {facts['cmake_version'] or 'none'}, "
        f"ninja {'yes' if facts['ninja'] else 'none'}, bundle {'yes' if facts['bundle'] else 'none'}",
    ]


def building(part):
    how = "ok" if part["ok"] else "failed"
    times = ", ".join(f"{name} {part[key]:.0f} s" for name, key in (("CMake", "configure_seconds"), ("ninja", "compile_seconds")) if key in part)
    return ["", f"build    {how}: {times}; {part.get('warnings', 0)} warnings; NCCL {'yes' if part.get('nccl') else 'no'}"]


def testing(name, part):
    results = part["results"]
    counts = {kind: sum(result["result"] == kind for result in results) for kind in ("passed", "failed", "cut", "skipped", "not run")}
    lines = ["", f"{name}    " + ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)]
    for result in results:
        lines.append(f"  {result['result']:<8} {result['seconds']:6.1f} s  {result['name']}")
        cases = result.get("cases", {})
        lines += [f"           fails alone: {case['name']}" for case in cases.get("failing", [])]
        if cases and not cases["failing"]:
            lines.append(f"           of its tests {cases['run_alone']} were run alone, and none fails")
    return lines + [f"  {line}" for line in part.get("nccl_joined", [])]


def measuring(figures):
    """Tables of what bench/gpu.py has measured; every part may be missing."""
    lines = [""]
    if ceilings := figures.get("ceilings"):
        lines += [f"ceilings {ceilings['matmul_flops'] / 1e12:.0f} TFLOP/s (bf16, {ceilings['size']} cubed, random data), "
                  f"{ceilings['copy_bytes_per_s'] / 1e12:.2f} TB/s (copy, read and write)"]
    if nccl := figures.get("nccl"):
        lines += [f"NCCL     {nccl['version']}: PyTorch's group of one rank after {nccl['init_seconds']:.2f} s, first all-reduce after "
                  f"{nccl['first_call_seconds']:.2f} s, next ones {nccl['call_seconds'] * 1e6:.0f} us"]
    rows = figures.get("comparisons", [])
    if rows:
        heads = "ms/step   tokens/s  of GEMM ceiling  memory GiB (predicted)  times as fast"
        lines += ["", f"training, bf16              program                 {heads}"]
    for row in rows:
        predicted = f"{row['predicted_bytes'] / 2**30:.1f}" if row.get("predicted_bytes") else "-"
        ratio = row.get("times_as_fast")
        lines.append(case_line(row["work"], "lockstep", row, f"{row['peak_bytes'] / 2**30:6.1f} ({predicted})") +
                     (f"  {ratio['ratio']:.2f} ({ratio['smallest']:.2f}..{ratio['largest']:.2f})" if ratio else ""))
        lines += [case_line("", peer["program"], peer, f"{peer['peak_bytes'] / 2**30:6.1f}") for peer in row["peers"]]
    for name, table in (("host time per action, gpt2-124m, one traced step", action_lines(figures.get("actions", []))),
                        ("kernels of Lockstep (ncu)", kernel_lines(figures.get("kernels", {}).get("lockstep", []))),
                        ("kernels of PyTorch (torch.profiler)", kernel_lines(figures.get("kernels", {}).get("pytorch", [])))):
        lines += ["", name, *table] if table else []
    return lines + [f"  not measured: {what}: {why}" for what, why in figures.get("not_done", [])]


def case_line(work, program, row, memory):
    share = f"{row['share_of_limit']:.0%}" if row.get("share_of_limit") else "-"
    return f"  {work:<25} {program:<23} {row['median_ms']:8.1f} {row['tokens_per_s']:10.0f}  {share:>15}  {memory:<22}"


def action_lines(actions):
    return [f"  {row['kind']:<12} {row['count']:5} x  {row['host_us']:9.1f} us each  {row['host_ms']:8.2f} ms" for row in actions]


def kernel_lines(kernels):
    return [f"  {row['share']:6.1%}  {row['calls']:6} x  {row['us']:9.1f} us  {row['name'][:110]}" for row in kernels[:24]]
