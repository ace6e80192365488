"""Trains a PyTorch twin of a Lockstep model whose states the ranks share out, over Gloo on loopback.

Prints what train_torch.py prints, and memory. --how fsdp: FSDP2, fully_shard of each block and of the rest (ZeRO-3);
fsdp-keep: the same with reshard_after_forward=False (gathered parameters stay until the backward pass, as ZeRO-2 has
them); zero: DistributedDataParallel and ZeroRedundancyOptimizer (ZeRO-1). Parameters of FSDP2 are clipped and updated as
the local shards, which spares them DTensor's dispatch.

Two figures for memory, each the largest of the ranks. "rss_bytes": the largest resident set (VmHWM, set to the present
one just before the model is made) less the resident set at that moment. "allocated_bytes" (only with --memory, as it makes
the steps slow): the largest sum of what LibTorch's CPU allocator had handed out since then, by the profiler's record of
allocations; Gloo's own buffers are not in it.
"""

import argparse
import json
import math
import os
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from models import Transformer
from shapes import SHAPES
from train_torch import batches, free_port, minor_faults

HOWS = ("fsdp", "fsdp-keep", "zero")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--how", choices=HOWS, default="fsdp")
    parser.add_argument("--model", choices=SHAPES, default="gpt2-10m")
    parser.add_argument("--tokens", required=True, help="file of 16-bit token ids (a Megatron .bin)")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step, over all ranks")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of one rank")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps after the warm-up")
    parser.add_argument("--memory", action="store_true", help="record every allocation; the steps are slow then")
    arguments = parser.parse_args()
    if arguments.batch % arguments.ranks != 0:
        parser.error(f"--batch {arguments.batch} does not divide by --ranks {arguments.ranks}")
    return arguments


def groups_of(parameters):
    """As train_torch.make_optimizer has them; a shard has the dims of its parameter."""
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


OPTIMIZER = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "fused": True}


class Fsdp:
    def __init__(self, model, mesh, keep):
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=not keep)
        fully_shard(model, mesh=mesh)
        self.run, self.parameters = model, list(model.parameters())
        self.locals = [p.to_local().detach() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(groups_of(self.locals), **OPTIMIZER)

    def update(self):
        """Returns the norm of the whole gradient."""
        for parameter, local in zip(self.parameters, self.locals):
            local.grad = parameter.grad.to_local()
            parameter.grad = None
        gradients = [local.grad for local in self.locals if local.numel() > 0]
        norm = torch.stack(torch._foreach_norm(gradients)).square().sum()
        dist.all_reduce(norm)
        norm = norm.sqrt()
        torch._foreach_mul_(gradients, torch.clamp(1.0 / (norm + 1e-6), max=1.0))
        self.optimizer.step()
        for local in self.locals:
            local.grad = None
        return norm


class Zero:
    def __init__(self, model):
        self.run = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
        self.parameters = list(model.parameters())
        self.optimizer = ZeroRedundancyOptimizer(
            groups_of(self.parameters), optimizer_class=torch.optim.AdamW, parameters_as_bucket_view=True, **OPTIMIZER
        )

    def update(self):
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


def timed_steps(arguments, rank, trained):
    data = batches(arguments, rank)
    rows = []
    for _ in range(arguments.warmup + arguments.steps):
        wall, faults, begin = time.time(), minor_faults(), time.perf_counter()
        tokens, targets = next(data)
        loss = trained.run(tokens, targets)
        loss.backward()
        norm = trained.update()
        last = loss.item(), norm.item()
        if not math.isfinite(sum(last)):
            raise RuntimeError(f"loss {last[0]}, gradient norm {last[1]}")
        rows.append({"begin": wall, "seconds": time.perf_counter() - begin, "faults": minor_faults() - faults})
        rows[-1] |= {"loss": last[0], "norm": last[1]}
    return rows


def resident(key):
    """VmRSS, or VmHWM = the largest so far; bytes."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(key))
    return int(line.split()[1]) * 1024


def forget_peak():
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")


def largest_sum(recorded):
    """Of what was handed out and not yet taken back."""
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def largest_of_ranks(value):
    tensor = torch.tensor([value])
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.item()


def mean_of_ranks(values):
    tensor = torch.tensor(values)
    dist.all_reduce(tensor)
    return (tensor / dist.get_world_size()).tolist()


def train(rank, arguments, port):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=arguments.ranks)
    torch.set_num_threads(arguments.threads)
    mesh = init_device_mesh("cpu", (arguments.ranks,))
    dist.barrier()
    forget_peak()
    before = resident("VmRSS")
    recording = profile(activities=[ProfilerActivity.CPU], profile_memory=True) if arguments.memory else nullcontext()
    with recording as recorded:
        torch.manual_seed(1234)
        model = Transformer(SHAPES[arguments.model])
        parameters = sum(p.numel() for p in model.parameters())
        trained = Zero(model) if arguments.how == "zero" else Fsdp(model, mesh, arguments.how == "fsdp-keep")
        rows = timed_steps(arguments, rank, trained)
    rss = largest_of_ranks(resident("VmHWM") - before)
    allocated = largest_of_ranks(largest_sum(recorded)) if arguments.memory else None
    losses = mean_of_ranks([row["loss"] for row in rows])

    if rank == 0:
        timed = rows[arguments.warmup :]
        seconds = sorted(row["seconds"] for row in timed)[len(timed) // 2]
        report = {
            "step_seconds": [row["seconds"] for row in timed],
            "step_faults": [row["faults"] for row in timed],
            "first_step_begin": rows[0]["begin"],  # seconds since 1970
            "losses": losses,  # of the global batch
            "grad_norms": [row["norm"] for row in rows],
            "loss": losses[-1],
            "tokens_per_s": arguments.batch * arguments.seq_len / seconds,
            "parameters": parameters,
            "rss_bytes": rss,
            "allocated_bytes": allocated,
            "torch": torch.__version__,
        }
        print(json.dumps(report), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # Gloo's threads sometimes abort a process that ends the usual way


def main():
    arguments = parse_arguments()
    torch.multiprocessing.spawn(train, (arguments, free_port()), nprocs=arguments.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
