"""Times the matrix products of a model's step on every path LibTorch offers; one line of JSON on standard output.

For each linear layer the forward product, the gradient of its input and that of its weight, at the step's number of
tokens. Paths: torch.mm (MKL in fp32, oneDNN or MKL in bf16, as ATen chooses) and oneDNN by mkldnn::_linear_pointwise,
which is what fused inference layers call; the head also in chunks of rows, which stay in the cache. On a GPU torch.mm alone, of the whole.
"""

import argparse
import json
import statistics
import sys
import time

import torch

from shapes import MEASURED

HEAD_CHUNKS = (256, 80)  # rows


def onednn(rows, weight):
    """rows [m, k], weight [n, k] -> [m, n]."""
    return torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")


def in_chunks(product, rows, size):
    for begin in range(0, len(rows), size):
        product(rows[begin : begin + size])


def paths(part, x, w, dy, chunks):
    """name -> call for one product of y = x w^T; x [m, k], w [n, k], dy [m, n]."""
    left, right = {"forward": (x, w.t()), "input": (dy, w), "weight": (dy.t(), x)}[part]
    out = torch.empty(left.shape[0], right.shape[1], dtype=x.dtype, device=x.device)
    found = {"mm": lambda: torch.mm(left, right, out=out)}
    if x.is_cpu:
        found["onednn"] = lambda: onednn(left, right.t())
    if part == "weight":  # its transpose is as good
        turned = torch.empty(right.shape[1], left.shape[0], dtype=x.dtype, device=x.device)
        found["mm transposed"] = lambda: torch.mm(x.t(), dy, out=turned)
        if x.is_cpu:
            found["onednn transposed"] = lambda: onednn(x.t(), dy.t())
        return found
    for size in chunks:
        part_out = torch.empty(size, right.shape[1], dtype=x.dtype)
        found[f"mm, {size} rows"] = lambda size=size, to=part_out: in_chunks(
            lambda rows: torch.mm(rows, right, out=to[: len(rows)]), left, size
        )
        found[f"onednn, {size} rows"] = lambda size=size: in_chunks(lambda rows: onednn(rows, right.t()), left, size)
    return found


def timed(call, count):
    begin = time.perf_counter()
    for _ in range(count):
        call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


def seconds_of(found, repeats):
    """Median seconds of each path, the paths in turns."""
    first = {name: min(timed(call, 1) for _ in range(3)) for name, call in found.items()}
    best = min(first.values())
    found = {name: call for name, call in found.items() if first[name] < 2 * best}
    count = max(1, int(0.02 / best))
    if best > 0.1:
        repeats = min(repeats, 3)
    taken = {name: [] for name in found}
    for _ in range(repeats):
        for name, call in found.items():
            taken[name].append(timed(call, count))
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def measure(shape, tokens, dtype, repeats, device):
    rows = []
    for name, count, inputs, outputs in shape.products():
        m = shape.rows(name, tokens)
        x, w, dy = (0.1 * torch.randn(*size, device=device).to(dtype) for size in ((m, inputs), (outputs, inputs), (m, outputs)))
        for part in ("forward", "input", "weight"):
            chunks = [size for size in HEAD_CHUNKS if name == "head" and size < tokens and device == "cpu"]
            seconds = seconds_of(paths(part, x, w, dy, chunks), repeats)
            rows.append({"name": name, "part": part, "count": count, "m": m, "k": inputs, "n": outputs, "seconds": seconds})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MEASURED, default="gpt2-10m")
    parser.add_argument("--tokens", type=int, default=1024, help="of a step")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    with torch.inference_mode():
        print(json.dumps(measure(MEASURED[arguments.model], arguments.tokens, dtype, arguments.repeats, arguments.device)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
