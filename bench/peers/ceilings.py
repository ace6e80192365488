"""What one GPU can do at most, by PyTorch: a large matrix product in bf16 and a large copy; one line of JSON on standard output.

Random data: zeros are faster than what a model computes with. The median of several calls, each waited for.
"""

import json
import statistics
import sys
import time

import torch

SIZE = 8192
COPIED = 4 << 30  # bytes


def seconds_of(call, repeats=10):
    taken = []
    for number in range(repeats + 3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if number >= 3:
            taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def main():
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.empty(COPIED // 4, device="cuda").normal_()
    target = torch.empty_like(source)
    free, total = torch.cuda.mem_get_info()
    print(json.dumps({
        "size": SIZE,
        "matmul_flops": 2 * SIZE**3 / seconds_of(lambda: torch.mm(a, b, out=product)),
        "copy_bytes_per_s": 2 * COPIED / seconds_of(lambda: target.copy_(source)),
        "bytes": total,
        "device": torch.cuda.get_device_name(),
    }), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
