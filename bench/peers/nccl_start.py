"""How long NCCL takes to begin, by PyTorch: a group of one rank on one GPU; one line of JSON on standard output."""

import json
import sys
import time

import torch
import torch.distributed as dist

from train_torch import free_port


def timed(call):
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def main():
    device = torch.device("cuda", 0)
    tensor = torch.ones(1 << 20, device=device)
    torch.cuda.synchronize()
    start = lambda: dist.init_process_group("nccl", f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1, device_id=device)
    report = {"version": ".".join(map(str, torch.cuda.nccl.version())), "init_seconds": timed(start)}
    report["first_call_seconds"] = timed(lambda: dist.all_reduce(tensor))
    report["call_seconds"] = min(timed(lambda: dist.all_reduce(tensor)) for _ in range(20))
    print(json.dumps(report), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
