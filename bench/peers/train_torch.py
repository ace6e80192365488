"""Trains a PyTorch twin of a Lockstep model and prints the seconds of each step after warm-up as one line of JSON.

Fused AdamW, clipping by the global norm, torch.compile on request; more than one rank is DistributedDataParallel over
Gloo on loopback. Precision: fp32; autocast = bf16 with fp32 weights and moments; bf16 = weights and moments in bf16 too.
A step is timed as Lockstep times its own: from fetching the batch until loss and gradient norm are known; reading them waits for a
GPU. With --profile two more steps tell the time of each kernel of a GPU.
"""

import argparse
import json
import os
import resource
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from models import Transformer
from shapes import SHAPES


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="gpt2-10m")
    parser.add_argument("--tokens", required=True, help="file of 16-bit token ids (a Megatron .bin)")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step, over all ranks")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--precision", choices=("fp32", "autocast", "bf16"), default="fp32")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of one rank")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps after the warm-up")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--compile-blocks", action="store_true", help="each block and the head alone: all blocks share what is compiled once")
    parser.add_argument("--compile-mode", default="default", help="as torch.compile takes it: max-autotune")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if arguments.batch % arguments.ranks != 0:
        parser.error(f"--batch {arguments.batch} does not divide by --ranks {arguments.ranks}")
    return arguments


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
        tokens, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        if getattr(arguments, "device", "cpu") == "cuda":
            tokens, targets = (part.pin_memory().to("cuda", non_blocking=True) for part in (tokens, targets))
        yield tokens, targets


def minor_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def stepper(arguments, rank, model, run, data=None):
    """A function that trains one step and returns its row; `run` is the model, perhaps compiled or wrapped; `data` is batches() unless given."""
    optimizer = make_optimizer(model)
    parameters = list(model.parameters())
    data = data or batches(arguments, rank)

    def step():
        wall, faults, begin = time.time(), minor_faults(), time.perf_counter()
        tokens, targets = next(data)
        with torch.autocast(arguments.device, torch.bfloat16, enabled=arguments.precision == "autocast"):
            loss = run(tokens, targets)
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last = loss.item(), grad_norm.item()
        return {"begin": wall, "seconds": time.perf_counter() - begin, "faults": minor_faults() - faults, "loss": last[0]}

    return step


def compiled(arguments, model):
    """The model as torch.compile makes it, where that is asked for."""
    if arguments.compile_blocks:
        for block in model.blocks:
            block.compile(mode=arguments.compile_mode, dynamic=False)
        model.loss_of = torch.compile(model.loss_of, mode=arguments.compile_mode, dynamic=False)
    return torch.compile(model, mode=arguments.compile_mode, dynamic=False) if arguments.compile else model


def kernels(step, steps=2):
    """[name, calls, seconds] of what the GPU does in a step, the mean of `steps`."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    rows = [(row.key, row.count / steps, row.self_device_time_total / 1e6 / steps) for row in found.key_averages()]
    return sorted((row for row in rows if row[2] > 0), key=lambda row: -row[2])


def train(rank, arguments, port):
    if arguments.ranks > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=arguments.ranks)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1234)
    shape = SHAPES[arguments.model]
    if arguments.device == "cuda":
        torch.set_float32_matmul_precision("high")
    with torch.device(arguments.device):
        model = Transformer(shape)
    if arguments.precision == "bf16":
        model = model.to(torch.bfloat16)
    run = compiled(arguments, model)
    if arguments.ranks > 1:
        run = DistributedDataParallel(run, gradient_as_bucket_view=True, static_graph=True)
    step = stepper(arguments, rank, model, run)
    rows = [step() for _ in range(arguments.warmup + arguments.steps)]

    if rank == 0:
        timed = rows[arguments.warmup :]
        report = {
            "step_seconds": [row["seconds"] for row in timed],
            "step_faults": [row["faults"] for row in timed],
            "first_step_begin": rows[0]["begin"],  # seconds since 1970
            "loss": rows[-1]["loss"],
            "parameters": sum(p.numel() for p in model.parameters()),
            "torch": torch.__version__,
        }
        if arguments.device == "cuda":
            report["peak_bytes"] = torch.cuda.max_memory_allocated()
        if arguments.profile:
            report["kernels"] = kernels(step)
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
