"""Trains a PyTorch twin of a Lockstep model and prints the seconds of each step after warm-up as one line of JSON.

Fused AdamW, clipping by the global norm, bf16 by autocast, torch.compile on request; more than one rank is
DistributedDataParallel over Gloo on loopback. A step is timed as Lockstep times its own: from fetching the batch until
loss and gradient norm are known.
"""

import argparse
import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from models import SHAPES, Transformer


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="gpt2-10m")
    parser.add_argument("--tokens", required=True, help="file of 16-bit token ids (a Megatron .bin)")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step, over all ranks")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of one rank")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps after the warm-up")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    if arguments.batch % arguments.ranks != 0:
        parser.error(f"--batch {arguments.batch} does not divide by --ranks {arguments.ranks}")
    return arguments


def best_product_rate(dtype, threads):
    """FLOP/s of the fastest of a few square products: what lockstep/train/gemm_rate.cpp measures."""
    torch.set_num_threads(threads)
    size = 768
    a = torch.ones(size, size, dtype=dtype)
    best = 0.0
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        begin = time.perf_counter()
        torch.mm(a, a)
        best = max(best, 2 * size**3 / (time.perf_counter() - begin))
    return best


def gemm_rate(dtype, threads):
    """What `threads` cores can do: with that many threads, or one times as many (a busy machine disturbs it less)."""
    alone = threads * best_product_rate(dtype, 1)
    return max(alone, best_product_rate(dtype, threads))


def make_optimizer(model):
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)


def batches(arguments, rank):
    """Endless (tokens, targets) of this rank, drawn at random from the file."""
    ids = torch.from_file(arguments.tokens, dtype=torch.int16, size=os.path.getsize(arguments.tokens) // 2)
    local, length = arguments.batch // arguments.ranks, arguments.seq_len
    generator = torch.Generator().manual_seed(1234 + rank)
    while True:
        starts = torch.randint(len(ids) - length, (local,), generator=generator)
        windows = torch.stack([ids[s : s + length + 1] for s in starts.tolist()]).long() & 0xFFFF
        yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def timed_steps(arguments, rank, model, run):
    """Seconds of every step, and the last loss; `run` is the model, perhaps compiled or wrapped."""
    optimizer = make_optimizer(model)
    data = batches(arguments, rank)
    seconds = []
    for _ in range(arguments.warmup + arguments.steps):
        begin = time.perf_counter()
        tokens, targets = next(data)
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bf16"):
            loss = run(tokens, targets)
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item(), grad_norm.item()
        seconds.append(time.perf_counter() - begin)
    return seconds, loss.item()


def train(rank, arguments, port):
    if arguments.ranks > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=arguments.ranks)
    rate = gemm_rate(torch.bfloat16 if arguments.precision == "bf16" else torch.float32, arguments.threads)

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1234)
    shape = SHAPES[arguments.model]
    model = Transformer(shape)
    run = torch.compile(model) if arguments.compile else model
    if arguments.ranks > 1:
        run = DistributedDataParallel(run, gradient_as_bucket_view=True, static_graph=True)
    seconds, loss = timed_steps(arguments, rank, model, run)

    if rank == 0:
        report = {
            "step_seconds": seconds[arguments.warmup :],
            "loss": loss,
            "parameters": sum(p.numel() for p in model.parameters()),
            "flops_per_step": shape.flops_per_token(arguments.seq_len) * arguments.batch * arguments.seq_len,
            "gemm_flops_per_s": rate * arguments.ranks,  # of all ranks
            "torch": torch.__version__,
        }
        print(json.dumps(report), flush=True)
    if arguments.ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    arguments = parse_arguments()
    if arguments.ranks == 1:
        train(0, arguments, 0)
    else:
        torch.multiprocessing.spawn(train, (arguments, free_port()), nprocs=arguments.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
