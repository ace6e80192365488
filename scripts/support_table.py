#!/usr/bin/env python3
"""The table "What works" of README.md and that of families of docs/models.md, from the results of the tests that show them.

    ctest --test-dir build/release --output-junit results.xml
    scripts/support_table.py results.xml            # prints the tables
    scripts/support_table.py results.xml --write    # puts each between the marks of its page
    scripts/support_table.py results.xml --check    # says where a page is not what these results say

A row says that something works where each of its tests has passed. Otherwise it names those that failed or did not run.
"""
import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Row:
    name: str
    what: str
    limits: str
    tests: tuple


def row(name, what, limits, *tests):
    return Row(name, what, limits, tests)


ROWS = (
    row("data parallel, ring", "all-reduce of buckets inside the backward pass", "",
        "engine.executor_test", "e2e.verify_test"),
    row("data parallel, parameter server", "one rank holds the optimizer's state", "",
        "engine.executor_test", "e2e.verify_test"),
    row("ZeRO-1/2/3, FSDP, HSDP", "optimizer state, gradients, parameters in equal parts; gathered ahead of use; with tp, any of the three",
        "the whole of the largest layer fits on a rank",
        "engine.executor_test", "engine.zero_test", "engine.sharding_edge_test", "program_verify.sharding_test",
        "program_verify.sharding_mutants_test", "e2e.zero_test"),
    row("tensor parallel", "linears, heads, vocabulary and loss cut over `parallel.tp`; uneven vocabularies; shared key/value heads",
        "`tp` divides the heads; of it and the key/value heads one divides the other",
        "engine.tensor_parallel_test", "parallel_tensor.layers_test", "parallel_tensor.cross_entropy_test", "e2e.verify_test"),
    row("sequence parallel", "norms, dropout and sums on 1/tp of the rows, however many there are", "",
        "engine.tensor_parallel_test", "parallel_tensor.layers_test", "e2e.verify_test"),
    row("dp x tp", "either kind of data parallelism over tp groups", "groups of neighbouring ranks",
        "engine.tensor_parallel_test", "e2e.verify_test", "e2e.tensor_parallel_test"),
    row("pipelines", "naive, gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, dualpipe-v: the same bits from all; PyTorch's grids in CSV; "
        "uneven stages; tied embeddings on two ranks; evaluation through the stages", "interleaved: microbatches a multiple of `pp`",
        "program_passes.schedules_test", "program_verify.schedule_file_test", "pipeline_grids_test", "program_verify.pipeline_mutants_test", "program_predict.pipeline_memory_test",
        "program_predict.pipeline_predict_test", "engine.pipeline_test", "config.pipeline_test",
        "e2e.pipeline_test"),
    row("post-validation", "zb-h2 and zb-v do not wait for the gradient norm of all stages; an update that should have been clipped is "
        "taken back, to the bit", "not with ZeRO-3, offload or a parameter server",
        "program_verify.post_validation_test", "plan.post_validation_test", "engine.post_validation_test", "e2e.post_validation_test"),
    row("dp x tp x pp (3D)", "with sequence parallelism, any ZeRO stage, recomputation and offload; where every rank should stand", "",
        "e2e.layout_matrix_test", "engine.pipeline_test", "program_render.rank_map_test", "e2e.pipeline_test"),
    row("the drawing of a step", "simulated from costs and measured in a run, with bubble, critical path and memory: SVG, page, text, Chrome trace",
        "", "plan.simulate_test", "plan.bubble_test", "plan.drawing_test", "plan.step_trace_test", "report_chromium_test"),
    row("recomputation", "selective or full, of all blocks or block by block; no bit changes", "a block is the unit",
        "model.recompute_test", "engine.recompute_test", "program_verify.recompute_test", "model.cost_test", "e2e.recompute_test"),
    row("offload to host and disk", "optimizer state and its update, parameters layer by layer, inputs of blocks; moved beside the work",
        "not run on a GPU; not with a parameter server", "engine.offload_test", "program_verify.offload_test", "engine.disk_tier_test",
        "e2e.offload_test"),
    row("memory", "predicted and measured by category and at its peak; `memory.device_limit` is kept", "",
        "engine.memory_test", "program_predict.memory_test", "plan.ways_out_test", "e2e.memory_limit_test"),
    row("experts, expert parallel", "softmax, sigmoid and expert-choice routers, groups, shared experts; dropless or with a capacity; balanced by a loss or a bias; "
        "`ep` and `etp` over the ranks of dp x tp, with any of the above; `overlap_experts`: rows travel beside another microbatch; "
        "`static_buffers`: messages of one size",
        "three dispatchers, `overlap_experts` and `static_buffers` with all_to_all alone; `moe.imbalance_limit`, `moe.capacity_factor` or the worst case bounds memory",
        "train.verify_experts_test", "e2e.experts_test", "parallel_expert.exchange_test", "engine.expert_overlap_test", "engine.balance_test",
        "e2e.deepseek_test"),
    row("context parallel", "`parallel.cp` ranks hold a part of every sequence: ring, all_to_all, all_gather, 2d; zigzag or contiguous; any length; latent attention; "
        "with tp, pipelines, ZeRO, experts, recomputation",
        "`all_to_all` needs a head for every rank; with experts 2 cp divides `seq_len`",
        "train.verify_context_test", "engine.context_mutants_test", "parallel_context.mutants_test", "program_render.draw_context_test"),
    row("packed documents", "whole documents in a sequence, masked from each other, positions from their beginning; over cp with equal work", "",
        "train.verify_context_test", "data.packing_test"),
    row("state spaces, hybrids", "Mamba-2, and any pattern of it with attention, windows, MLPs and experts over the layers; with tp, sequence parallelism, cp, pipelines, "
        "ZeRO, experts, recomputation, offload; documents reset the state", "`tp` divides the heads; of it and the groups one divides the other",
        "train.verify_state_space_test", "engine.state_space_mutants_test", "parallel_context.state_mutants_test", "e2e.hybrid_test"),
    row("models", "GPT-2, Llama, Mixtral, DeepSeek-V3, Mamba-2, Bamba and others, all in [models.md](docs/models.md): presets, sizes or a `config.json`; norms before or "
        "behind a branch, one after the other or beside each other; gradients against autograd",
        "", "hf_reference_test", "model.model_test", "arch.hf_config_test"),
    row("Hugging Face directories", "in and out for all of these, from and into any layout; transformers gives the same loss",
        "what is refused: [huggingface.md](docs/huggingface.md)",
        "e2e.hf_checkpoint_test", "e2e.hf_start_test", "e2e.tensor_parallel_test"),
    row("numbers", "fp32; bf16 with fp32 master weights; same command, same bits", "bf16 sums over tp are rounded to bf16",
        "engine.executor_test", "engine.tensor_parallel_test", "e2e.resume_test"),
    row("proof", "`verify`: loss, gradient norm and every gradient against one rank; every update against its formula; both left alone", "",
        "e2e.verify_test", "train.verify_test"),
    row("prediction", "`show`: program, layout, memory, traffic", "",
        "program_predict.predict_test", "engine.tensor_parallel_test", "model.cost_test"),
    row("planner", "`plan`: fit, time of a step with a band, traffic on every link, the best layout and why, on clusters that are described; "
        "machines calibrated on a run; published runs predicted", "how well: [planning.md](docs/planning.md#how-do-we-know)",
        "plan_cluster.links_test", "plan_cluster.collective_time_test", "plan_time.step_estimate_test", "plan_time.published_rows_test",
        "plan_search.search_test", "plan_evidence.replay_test", "plan.calibrate_run_test", "apps.verb_plan_test", "plan_page_test"),
    row("checkpoints", "any layout goes on from any other; PyTorch reads them", "",
        "e2e.resume_test", "checkpoint.zero_layouts_test", "checkpoint_dcp_test", "checkpoint_fsdp_test"),
    row("faults", "lost and hanging ranks are named and end the job; restarts; signals save; damaged checkpoints are skipped; one run in a directory at a time", "",
        "e2e.stop_test", "e2e.resume_test", "e2e.tensor_parallel_test", "comm.faults_test", "checkpoint.faults_test",
        "checkpoint.publish_test", "train.run_lock_test"),
    row("tokenizers", "byte-level BPE training; `tokenizer.json` of GPT-2, Llama, Qwen and others, as `tokenizers` reads them", "",
        "data_tokenizer_test", "data.bpe_trainer_test"),
    row("data", "Megatron `.bin/.idx`", "", "data.prepare_test", "data.token_file_test", "data.sampler_test"),
    row("generation", "runs and Hugging Face directories, batches, KV cache, one rank or several (`-n`)",
        "planned: pages of the cache, serving", "e2e.generate_test", "e2e.hf_generate_test"),
    row("chat", "with the model's template", "", "e2e.chat_test", "chat_template_test"),
    row("backend: shared memory", "ranks of one host", "", "comm.collectives_test", "comm.faults_test"),
    row("backend: MPI", "ranks of several hosts", "[what has been run](docs/launching.md#what-has-been-run)",
        "comm.mpi_collectives_test", "comm.mpi_faults_test", "e2e.mpi_test", "e2e.mpi_verify_test", "e2e.mpi_hosts_test"),
    row("launchers", "`-n`, torchrun, mpirun, srun, Kubernetes, flags",
        "[what has been run](docs/launching.md#what-has-been-run)",
        "e2e.launchers_test", "e2e.mpirun_test", "e2e.launch_scripts_test"),
    row("devices", "CPU; the CUDA code compiles", "**no GPU has run it, nor NCCL**: [gpu.md](docs/gpu.md#what-has-been-run)",
        "nn.layers_test", "cuda_compile_test"),
)

# A family as config.json names it, in `model_type`, and what of it is in. Held against transformers: logits, loss, every gradient and one
# step of AdamW (hf_reference_test), greedy text (e2e.hf_generate_test), or all of them (e2e.families_test). tests/support_table_test.py
# looks for the family in each such test.
REFERENCE = ("hf_reference_test", "e2e.hf_generate_test")
FURTHER = "e2e.families_test"
REFUSED = "arch.hf_families_test"  # and what config.json may not ask for


def family(model_type, what, limits="", *tests):
    return Row(f"`{model_type}`", what, limits, (*REFERENCE, *tests))


def further(model_type, what, limits="", *tests):
    return Row(f"`{model_type}`", what, limits, (FURTHER, *tests))


FAMILIES = (
    family("gpt2", "learned positions, LayerNorm, biases", "", "e2e.hf_checkpoint_test", "e2e.hf_start_test"),
    family("llama", "grouped keys and values, biases where the file has them; rotation as it is, linear, llama3, yarn", "", "e2e.hf_checkpoint_test"),
    family("mistral", "a window in all layers", "", "e2e.hf_checkpoint_test", "e2e.hf_start_test"),
    family("qwen2", "biases of q, k, v", "", "e2e.hf_checkpoint_test"),
    family("qwen3", "a norm of every query and key head", "", "e2e.hf_checkpoint_test", "e2e.hf_start_test"),
    family("mixtral", "experts in every layer, softmax after the choice", "`router_jitter_noise`", "e2e.hf_checkpoint_test", "e2e.hf_start_test", "train.verify_experts_test"),
    family("qwen3_moe", "experts in some layers, softmax before or after the choice", "", "e2e.hf_checkpoint_test", "train.verify_experts_test"),
    family("deepseek_v3", "latent attention; groups of experts, shared experts, a bias that balances", "attention without `q_lora_rank`; `attention_bias`; other routers; layers for "
           "further tokens are not read", "e2e.hf_checkpoint_test", "e2e.hf_start_test", "e2e.deepseek_test"),
    further("gpt_neox", "Pythia: attention and MLP beside each other or one after the other, a part of each head turned, GELU", "", REFUSED),
    further("phi3", "q, k, v and gate, up as one tensor each; a window", "`longrope` (the 128k models)", REFUSED),
    further("olmo2", "norms behind attention and MLP; q and k normed whole", "", REFUSED),
    further("olmo3", "as OLMo 2, with windows in three of four layers", "", REFUSED),
    further("smollm3", "every fourth layer without rotation", "", REFUSED),
    further("gemma3_text", "windows in five of six layers with a rotation of their own, four norms that multiply by 1 + weight, scaled embeddings, GeGLU",
           "soft caps, `use_bidirectional_attention`, pictures", REFUSED),
    further("mamba2", "a state space in every layer, no MLP; its norm over groups", "", REFUSED, "train.verify_state_space_test"),
    further("bamba", "state spaces and attention, half of each head turned, an MLP behind each", "`z_loss_coefficient`", REFUSED, "train.verify_state_space_test", "e2e.hybrid_test"),
    further("nemotron_h", "a state space, attention or an MLP in each layer, no rotation, squared ReLU", "layers `moe`: experts without a gate", REFUSED, "train.verify_state_space_test"),
    further("falcon_h1", "a state space and attention beside each other in every layer, multipliers of muP", "`mamba_norm_before_gate` with a norm; biases beside multipliers", REFUSED,
            "train.verify_state_space_test"),
    further("gpt_oss", "attention sinks, a window in every second layer, experts with clamped SwiGLU and biases; bf16 weights", "MXFP4 weights", REFUSED),
)


@dataclass(frozen=True)
class Table:
    """A page and the marks on it between which its rows stand."""

    page: str
    begin: str
    end: str
    rows: tuple
    heads: tuple

    def path(self):
        return ROOT / self.page


SUPPORT = Table("README.md", "<!-- support table: scripts/support_table.py -->\n", "<!-- end of support table -->\n", ROWS, ("", "works", "limits, plans", "shown by"))
MODELS = Table("docs/models.md", "<!-- table of families: scripts/support_table.py -->\n", "<!-- end of table of families -->\n", FAMILIES,
               ("`model_type`", "in", "out", "shown by"))
TABLES = (SUPPORT, MODELS)


def outcomes(junit):
    """Name of each test of a JUnit file: "passed", "failed" or "not run"."""
    words = {"run": "passed", "fail": "failed"}
    return {case.get("name"): words.get(case.get("status"), "not run")
            for case in ElementTree.parse(junit).getroot().iter("testcase")}


def cells(entry, results):
    """The row's first words stand where its tests passed; otherwise what is amiss."""
    amiss = {}
    for test in entry.tests:
        outcome = results.get(test, "not run")
        if outcome != "passed":
            amiss.setdefault(outcome, []).append(f"`{test}`")
    said = "; ".join(f"**{outcome}**: {', '.join(tests)}" for outcome, tests in sorted(amiss.items()))
    return entry.name, said or entry.what, entry.limits, ", ".join(f"`{test}`" for test in entry.tests)


def text_of(table, results):
    lines = [table.heads, ("---",) * 4, *(cells(entry, results) for entry in table.rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def claimed(table, text):
    """What a table says of each test: those that a row names as amiss are, the others of its row have passed."""
    results = {}
    for entry, line in zip(table.rows, text.splitlines()[2:]):
        works = line.split(" | ")[1]
        found = re.findall(r"\*\*(failed|not run)\*\*: ((?:`[^`]+`(?:, )?)+)", works)
        amiss = {test: outcome for outcome, tests in found for test in re.findall(r"`([^`]+)`", tests)}
        for test in entry.tests:
            results.setdefault(test, amiss.get(test, "passed"))
    return results


def marked(table, text):
    """The text before the table, the table, the text behind it."""
    head, found, rest = text.partition(table.begin)
    inside, closed, tail = rest.partition(table.end)
    if not found or not closed:
        raise ValueError(f"no lines {table.begin.strip()} and {table.end.strip()}")
    return head + table.begin, inside, table.end + tail


def differing(table, results):
    """Lines that the page lacks."""
    page = marked(table, table.path().read_text())[1].splitlines()
    return [f"{table.page} does not say: {line}\n" for line in text_of(table, results).splitlines() if line not in page]


def write(table, results):
    head, _, tail = marked(table, table.path().read_text())
    table.path().write_text(head + text_of(table, results) + tail)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="what `ctest --output-junit` wrote")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="into the pages")
    what.add_argument("--check", action="store_true", help="compare with the pages")
    arguments = parser.parse_args()
    results = outcomes(arguments.results)
    if arguments.check:
        differ = [line for table in TABLES for line in differing(table, results)]
        print("".join(differ), end="")
        return 1 if differ else 0
    for table in TABLES:
        if arguments.write:
            write(table, results)
        else:
            print(text_of(table, results))
    return 0 if all(results.get(test) == "passed" for table in TABLES for entry in table.rows for test in entry.tests) else 1


if __name__ == "__main__":
    sys.exit(main())
