"""Trains a PyTorch twin of a Lockstep model cut into pipeline stages: torch.distributed.pipelining over Gloo on loopback.

Prints what train_torch.py prints. --schedule gpipe, 1f1b, interleaved (ScheduleInterleaved1F1B), zb (ScheduleInterleavedZeroBubble,
which is ZB-H1 with one stage a rank) or zb-v (ScheduleZBVZeroBubble). --blocks says how many blocks each stage has, in order of
the stages; the embedding goes with the first, norm and head with the last. The projection is tied to the embedding: the last
stage has a copy of it, and the gradients are summed over both (the schedules divide those of every stage by the microbatches).
"""

import argparse
import copy
import json
import math
import os
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from models import Transformer
from shapes import SHAPES
from train_torch import batches, free_port, make_optimizer, minor_faults

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zb": ScheduleInterleavedZeroBubble,
    "zb-v": ScheduleZBVZeroBubble,
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="gpt2-10m")
    parser.add_argument("--tokens", required=True, help="file of 16-bit token ids (a Megatron .bin)")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--blocks", required=True, help="of every stage: 3,2,2,1")
    parser.add_argument("--pin", action="store_true", help="each rank on a core of its own")
    parser.add_argument("--threads", type=int, default=1, help="of one rank")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps after the warm-up")
    arguments = parser.parse_args()
    arguments.blocks = [int(count) for count in arguments.blocks.split(",")]
    layers, stages = SHAPES[arguments.model].layers, len(arguments.blocks)
    if sum(arguments.blocks) != layers:
        parser.error(f"--blocks has {sum(arguments.blocks)} blocks, {arguments.model} has {layers}")
    single = arguments.schedule in ("gpipe", "1f1b")
    if stages % arguments.ranks != 0 or (single and stages != arguments.ranks):
        parser.error(f"{stages} stages over {arguments.ranks} ranks")
    if arguments.schedule == "zb-v" and stages != 2 * arguments.ranks:
        parser.error(f"zb-v has two stages a rank, not {stages} over {arguments.ranks} ranks")
    if arguments.batch % arguments.microbatches != 0:
        parser.error(f"--batch {arguments.batch} does not divide by --microbatches {arguments.microbatches}")
    return arguments


def rank_of(stage, arguments):
    lap, place = divmod(stage, arguments.ranks)
    return arguments.ranks - 1 - place if arguments.schedule == "zb-v" and lap % 2 else place


class Stage(nn.Module):
    """Some blocks of a model; the first takes tokens, the last gives logits."""

    def __init__(self, model, blocks, first, last):
        super().__init__()
        self.first, self.last = first, last
        self.tokens = model.tokens if first else copy.deepcopy(model.tokens) if last else None
        self.positions = model.positions if first else None
        self.blocks = nn.ModuleList(model.blocks[i] for i in blocks)
        self.norm = model.norm if last else None
        self.tables = (model.cos, model.sin) if hasattr(model, "cos") else None

    def forward(self, x):
        length = x.shape[1]
        rotary = self.tables and tuple(table[:length] for table in self.tables)
        if self.first:
            x = self.tokens(x)
            if self.positions is not None:
                x = x + self.positions.weight[:length]
        for block in self.blocks:
            x = block(x, rotary)
        return F.linear(self.norm(x), self.tokens.weight) if self.last else x


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Pipeline:
    """This rank's stages of a model and the schedule that runs them."""

    def __init__(self, model, rank, arguments):
        count = len(arguments.blocks)
        ranks = [rank_of(stage, arguments) for stage in range(count)]
        begins = [sum(arguments.blocks[:stage]) for stage in range(count + 1)]
        mine = [stage for stage in range(count) if ranks[stage] == rank]
        modules = [
            Stage(model, range(begins[stage], begins[stage + 1]), stage == 0, stage == count - 1) for stage in mine
        ]
        stages = [PipelineStage(module, stage, count, torch.device("cpu")) for stage, module in zip(mine, modules)]
        single = arguments.schedule in ("gpipe", "1f1b")
        make = SCHEDULES[arguments.schedule]
        self.schedule = make(stages[0] if single else stages, arguments.microbatches, loss_fn=loss_of)
        self.first, self.last = 0 in mine, count - 1 in mine
        self.parameters = list(dict.fromkeys(p for module in modules for p in module.parameters()))
        ends = sorted({ranks[0], ranks[-1]})
        self.tied = dist.new_group(ends) if len(ends) == 2 else None  # made by all ranks
        self.copies = [module.tokens.weight for module in modules if module.tokens]
        copied = modules[-1].tokens.weight if self.last else None
        self.counted = [p for p in self.parameters if p is not copied]

    def sum_copies(self):
        if not self.copies:
            return
        total = torch.stack([copied.grad for copied in self.copies]).sum(0) if len(self.copies) > 1 else self.copies[0].grad
        if self.tied:
            dist.all_reduce(total, group=self.tied)
        for copied in self.copies:
            copied.grad = total.clone() if len(self.copies) > 1 else total

    def step(self, tokens, targets):
        """Loss and gradient norm, after clipping; the same on all ranks."""
        losses = []
        feed = (tokens,) if self.first else ()
        self.schedule.step(*feed, target=targets if self.last else None, losses=losses, return_outputs=False)
        self.sum_copies()
        squares = torch.stack(torch._foreach_norm([p.grad for p in self.counted])).square().sum()
        loss = torch.stack(losses).mean() if self.last else torch.zeros(())
        sums = torch.stack([squares, loss.detach()])
        dist.all_reduce(sums)
        norm = sums[0].sqrt()
        torch._foreach_mul_([p.grad for p in self.parameters], torch.clamp(1.0 / (norm + 1e-6), max=1.0))
        return sums[1].item(), norm.item()


def timed_steps(arguments, pipeline):
    optimizer = make_optimizer(SimpleNamespace(parameters=lambda: pipeline.parameters))
    reads = SimpleNamespace(tokens=arguments.tokens, batch=arguments.batch, ranks=1, seq_len=arguments.seq_len)
    data = batches(reads, 0)
    rows = []
    for _ in range(arguments.warmup + arguments.steps):
        wall, faults, begin = time.time(), minor_faults(), time.perf_counter()
        loss, norm = pipeline.step(*next(data))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not math.isfinite(loss + norm):
            raise RuntimeError(f"loss {loss}, gradient norm {norm}")
        seconds = time.perf_counter() - begin
        rows.append({"begin": wall, "seconds": seconds, "faults": minor_faults() - faults, "loss": loss, "norm": norm})
    return rows


def train(rank, arguments, port):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if arguments.pin:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=arguments.ranks)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1234)  # every rank makes the whole model, so that both copies of the embedding are one
    model = Transformer(SHAPES[arguments.model])
    parameters = sum(p.numel() for p in model.parameters())
    rows = timed_steps(arguments, Pipeline(model, rank, arguments))
    if rank == 0:
        timed = rows[arguments.warmup :]
        seconds = sorted(row["seconds"] for row in timed)[len(timed) // 2]
        report = {
            "step_seconds": [row["seconds"] for row in timed],
            "step_faults": [row["faults"] for row in timed],
            "first_step_begin": rows[0]["begin"],  # seconds since 1970
            "losses": [row["loss"] for row in rows],
            "grad_norms": [row["norm"] for row in rows],
            "loss": rows[-1]["loss"],
            "tokens_per_s": arguments.batch * arguments.seq_len / seconds,
            "parameters": parameters,
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
