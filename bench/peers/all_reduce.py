"""Times torch.distributed's collectives over Gloo on loopback: all_reduce.py RANKS BYTES... [--seconds S] [--collective C].

What bench/collectives.cpp does for Lockstep: one process a rank, one call at a time, median of blocks; one line of
JSON.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist

BLOCKS = 7


def block(call, count):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    dist.barrier()
    return (time.perf_counter() - begin) / count


def median_seconds(call, seconds):
    first = min(block(call, 1) for _ in range(3))
    count = torch.tensor([max(1, int(seconds / BLOCKS / first))])
    dist.broadcast(count, 0)
    return statistics.median(block(call, count.item()) for _ in range(BLOCKS))


def call_of(collective, tensor, rank, ranks):
    own = tensor.view(ranks, -1)[rank].clone()
    if collective == "all_gather":
        return lambda: dist.all_gather_into_tensor(tensor, own)
    if collective == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(own, tensor)
    return lambda: dist.all_reduce(tensor)


def run_rank(rank, arguments, port):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=arguments.ranks)
    rows = []
    for size in arguments.bytes:
        tensor = torch.zeros(size // 4)
        call = call_of(arguments.collective, tensor, rank, arguments.ranks)
        rows.append({"bytes": size, "seconds": median_seconds(call, arguments.seconds)})
    if rank == 0:
        print(json.dumps({"ranks": arguments.ranks, "sizes": rows}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int)
    parser.add_argument("bytes", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one size, about")
    parser.add_argument("--collective", choices=("all_reduce", "all_gather", "reduce_scatter"), default="all_reduce")
    arguments = parser.parse_args()
    torch.multiprocessing.spawn(run_rank, (arguments, free_port()), nprocs=arguments.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
