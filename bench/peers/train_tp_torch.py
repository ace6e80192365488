"""Trains a PyTorch twin of a Lockstep model split by tensor parallelism: DTensor's parallelize_module over Gloo on loopback.

Prints what train_torch.py prints. Column-parallel qkv and up (gate), row-parallel out and down, vocabulary-parallel embedding,
head and loss; with --sequence-parallel norms and residuals hold S / tp. With --ranks = dp x tp the gradients of equal
shards are summed over dp by one all-reduce at the end of backward. Rows of the fused weights belong to the
rank that holds them (its own q, k, v or gate, up), which is a permutation of the one-rank model.
The optimizer works on the local shards, which spares it DTensor's dispatch.
"""

import argparse
import json
import math
import os
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from models import Transformer
from shapes import SHAPES
from train_torch import batches, free_port, make_optimizer, minor_faults


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="gpt2-10m")
    parser.add_argument("--tokens", required=True, help="file of 16-bit token ids (a Megatron .bin)")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step, over all ranks")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tp", type=int, help="ranks that share a replica; all of them unless given")
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--threads", type=int, default=1, help="of one rank")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps after the warm-up")
    arguments = parser.parse_args()
    arguments.tp = arguments.tp or arguments.ranks
    shape = SHAPES[arguments.model]
    for what, whole, parts in (
        ("--ranks", arguments.ranks, arguments.tp),
        ("--batch", arguments.batch, arguments.ranks // arguments.tp),
        ("heads", shape.heads, arguments.tp),
        ("ffn", shape.ffn, arguments.tp),
        ("vocabulary", shape.vocab_size, arguments.tp),
        ("--seq-len", arguments.seq_len, arguments.tp if arguments.sequence_parallel else 1),
    ):
        if whole % parts != 0:
            parser.error(f"{what} {whole} does not divide by {parts}")
    return arguments


class SplitTransformer(Transformer):
    """As Transformer, over the ranks of `mesh`; the loss is the same on all of them."""

    def split(self, mesh, sequence_parallel):
        self.mesh, self.sequence_parallel = mesh, sequence_parallel
        between = Shard(1) if sequence_parallel else Replicate()  # of residuals
        plan = {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between)}
        if sequence_parallel:
            plan["norm"] = SequenceParallel()
        for index, block in enumerate(self.blocks):
            name = f"blocks.{index}"
            block.attention.heads //= mesh.size()
            block.attention.kv_heads //= mesh.size()
            first = "up" if hasattr(block.mlp, "up") else "gate_up"
            plan |= {
                f"{name}.attention.qkv": ColwiseParallel(),
                f"{name}.attention.out": RowwiseParallel(output_layouts=between),
                f"{name}.mlp.{first}": ColwiseParallel(),
                f"{name}.mlp.down": RowwiseParallel(output_layouts=between),
            }
            if sequence_parallel:
                whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
                two = {"input_layouts": (Shard(1), None), "desired_input_layouts": (Replicate(), None)}
                plan |= {f"{name}.attention": PrepareModuleInput(**two), f"{name}.mlp": PrepareModuleInput(**whole)}
                plan |= {f"{name}.attention_norm": SequenceParallel(), f"{name}.mlp_norm": SequenceParallel()}
        return parallelize_module(self, mesh, plan)

    def forward(self, tokens, targets):
        length = tokens.shape[1]
        x = self.tokens(tokens)
        rotary = None
        if self.positions is None:
            rotary = self.cos[:length], self.sin[:length]
        else:
            begin = self.mesh.get_local_rank() * x.shape[1] if self.sequence_parallel else 0
            x = x + self.positions.weight[begin : begin + x.shape[1]]
        for block in self.blocks:
            x = block(x, rotary)
        x = self.norm(x)
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        logits = F.linear(x.redistribute(placements=[Replicate()]), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class LocalShards:
    """The parameters as the plain tensors of this rank, for clipping and the optimizer."""

    def __init__(self, model, groups):
        self.parameters, self.groups = list(model.parameters()), groups
        self.locals = [p.to_local().detach() if isinstance(p, DTensor) else p.detach() for p in self.parameters]
        self.split = [isinstance(p, DTensor) and isinstance(p.placements[0], Shard) for p in self.parameters]
        # Each rank has seen only its own positions of the sequence.
        self.partial = [model.sequence_parallel and not isinstance(p, DTensor) for p in self.parameters]

    def take_gradients(self):
        for parameter, local, partial in zip(self.parameters, self.locals, self.partial):
            gradient = parameter.grad
            if isinstance(gradient, DTensor):
                gradient = gradient.redistribute(placements=parameter.placements).to_local()
            if partial:
                dist.all_reduce(gradient, group=self.groups.tp)
            local.grad = gradient.contiguous()
            parameter.grad = None
        if dist.get_world_size(self.groups.dp) > 1:
            gradients = [local.grad for local in self.locals]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat, group=self.groups.dp)
            flat /= dist.get_world_size(self.groups.dp)
            for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
                gradient.copy_(part.view_as(gradient))

    def clip(self, most):
        norms = torch.stack(torch._foreach_norm([local.grad for local in self.locals])).square()
        split = torch.tensor(self.split)
        shards = norms[split].sum()
        dist.all_reduce(shards, group=self.groups.tp)
        norm = (shards + norms[~split].sum()).sqrt()
        torch._foreach_mul_([local.grad for local in self.locals], torch.clamp(most / (norm + 1e-6), max=1.0))
        return norm


def timed_steps(arguments, mesh, model):
    groups = SimpleNamespace(dp=mesh["dp"].get_group(), tp=mesh["tp"].get_group())
    shards = LocalShards(model, groups)
    optimizer = make_optimizer(SimpleNamespace(parameters=lambda: shards.locals))
    replicas = arguments.ranks // arguments.tp
    reads = SimpleNamespace(tokens=arguments.tokens, batch=arguments.batch, ranks=replicas, seq_len=arguments.seq_len)
    data = batches(reads, mesh["dp"].get_local_rank())
    rows = []
    for _ in range(arguments.warmup + arguments.steps):
        wall, faults, begin = time.time(), minor_faults(), time.perf_counter()
        tokens, targets = next(data)
        with loss_parallel():
            loss = model(tokens, targets)
            loss.backward()
        shards.take_gradients()
        norm = shards.clip(1.0)
        optimizer.step()
        last = loss.full_tensor().item() if isinstance(loss, DTensor) else loss.item()
        if not math.isfinite(last + norm.item()):
            raise RuntimeError(f"loss {last}, gradient norm {norm.item()}")
        seconds = time.perf_counter() - begin
        rows.append({"begin": wall, "seconds": seconds, "faults": minor_faults() - faults, "loss": last, "norm": norm.item()})
    return rows


def train(rank, arguments, port):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=arguments.ranks)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1234)
    mesh = init_device_mesh("cpu", (arguments.ranks // arguments.tp, arguments.tp), mesh_dim_names=("dp", "tp"))
    model = SplitTransformer(SHAPES[arguments.model])
    parameters = sum(p.numel() for p in model.parameters())
    model = model.split(mesh["tp"], arguments.sequence_parallel)
    rows = timed_steps(arguments, mesh, model)
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
