"""Both model families against Hugging Face transformers: logits, loss, every gradient, parameters after one AdamW step.

    hf_reference_test.py PATH_OF_hf_dump

hf_dump runs our layers on random parameters and writes everything; here the same parameters go into the transformers
model of the same sizes. Errors are max |ours - theirs| / max |theirs|, over each tensor.
"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

BOUND = 1e-5
HF_DUMP = ""

COMMON = {"layers": 2, "vocab_size": 61, "max_seq_len": 24, "norm_eps": 1e-5, "rope_theta": 5000.0, "batch": 2, "seq": 13}
CASES = {
    "gpt2 tied": {**COMMON, "family": "gpt2", "hidden": 24, "heads": 3, "kv_heads": 3, "head_size": 8, "ffn": 96, "tied": True},
    "gpt2 untied": {**COMMON, "family": "gpt2", "hidden": 24, "heads": 4, "kv_heads": 4, "head_size": 6, "ffn": 40,
                    "tied": False, "seq": 1, "batch": 3},
    "llama untied": {**COMMON, "family": "llama", "hidden": 24, "heads": 4, "kv_heads": 2, "head_size": 8, "ffn": 44,
                     "tied": False},
    "llama tied": {**COMMON, "family": "llama", "hidden": 32, "heads": 4, "kv_heads": 1, "head_size": 8, "ffn": 50,
                   "tied": True, "norm_eps": 1e-6, "seq": 24},
}


def run_ours(sizes):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([HF_DUMP, folder, json.dumps(sizes)], check=True, timeout=120)
        index = json.loads((Path(folder) / "index.json").read_text())
        data = (Path(folder) / "data.bin").read_bytes()
    tensors = {}
    for entry in index["tensors"]:
        count = int(np.prod(entry["shape"], dtype=np.int64))
        values = np.frombuffer(data, dtype="<f4", count=count, offset=entry["offset"]).reshape(entry["shape"])
        tensors[entry["name"]] = torch.from_numpy(values.copy())
    return tensors


def gpt2_model(sizes):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=sizes["vocab_size"], n_positions=sizes["max_seq_len"], n_embd=sizes["hidden"], n_layer=sizes["layers"],
        n_head=sizes["heads"], n_inner=sizes["ffn"], layer_norm_epsilon=sizes["norm_eps"], resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, tie_word_embeddings=sizes["tied"], attn_implementation="eager", bos_token_id=0, eos_token_id=0))


def llama_model(sizes):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=sizes["vocab_size"], max_position_embeddings=sizes["max_seq_len"], hidden_size=sizes["hidden"],
        num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"], num_key_value_heads=sizes["kv_heads"],
        head_dim=sizes["head_size"], intermediate_size=sizes["ffn"], rms_norm_eps=sizes["norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": sizes["rope_theta"]}, rope_theta=sizes["rope_theta"],
        tie_word_embeddings=sizes["tied"], attn_implementation="eager", bos_token_id=0, eos_token_id=0))


def gpt2_names(sizes):
    """Their name -> our names, to be stacked along dim 0; GPT-2's Conv1D holds [in, out]: transposed."""
    names = {"transformer.wte.weight": ["embed.tokens.weight"], "transformer.wpe.weight": ["embed.positions.weight"],
             "transformer.ln_f.weight": ["head.norm.weight"], "transformer.ln_f.bias": ["head.norm.bias"]}
    if not sizes["tied"]:
        names["lm_head.weight"] = ["head.weight"]
    for i in range(sizes["layers"]):
        for kind in ("weight", "bias"):
            ours, theirs = f"blocks.{i}.", f"transformer.h.{i}."
            names[f"{theirs}ln_1.{kind}"] = [f"{ours}attention_norm.{kind}"]
            names[f"{theirs}attn.c_attn.{kind}"] = [f"{ours}attention.{part}.{kind}" for part in "qkv"]
            names[f"{theirs}attn.c_proj.{kind}"] = [f"{ours}attention.out.{kind}"]
            names[f"{theirs}ln_2.{kind}"] = [f"{ours}mlp_norm.{kind}"]
            names[f"{theirs}mlp.c_fc.{kind}"] = [f"{ours}mlp.up.{kind}"]
            names[f"{theirs}mlp.c_proj.{kind}"] = [f"{ours}mlp.down.{kind}"]
    return names


def llama_names(sizes):
    names = {"model.embed_tokens.weight": ["embed.tokens.weight"], "model.norm.weight": ["head.norm.weight"]}
    if not sizes["tied"]:
        names["lm_head.weight"] = ["head.weight"]
    for i in range(sizes["layers"]):
        ours, theirs = f"blocks.{i}.", f"model.layers.{i}."
        for theirs_part, ours_part in {
                "input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm",
                "self_attn.q_proj": "attention.q", "self_attn.k_proj": "attention.k", "self_attn.v_proj": "attention.v",
                "self_attn.o_proj": "attention.out", "mlp.gate_proj": "mlp.gate", "mlp.up_proj": "mlp.up",
                "mlp.down_proj": "mlp.down"}.items():
            names[f"{theirs}{theirs_part}.weight"] = [f"{ours}{ours_part}.weight"]
    return names


def in_their_form(tensors, prefix, theirs, ours):
    value = torch.cat([tensors[prefix + name] for name in ours])
    return value.t() if ".c_" in theirs and theirs.endswith("weight") else value


class HuggingFaceReference(unittest.TestCase):
    def expect_close(self, ours, theirs, what):
        self.assertEqual(tuple(ours.shape), tuple(theirs.shape), what)
        error = ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()
        self.assertLessEqual(error, BOUND, what)

    def check(self, sizes):
        ours = run_ours(sizes)
        is_gpt2 = sizes["family"] == "gpt2"
        model = gpt2_model(sizes) if is_gpt2 else llama_model(sizes)
        names = gpt2_names(sizes) if is_gpt2 else llama_names(sizes)
        parameters = dict(model.named_parameters())
        self.assertEqual(set(parameters), set(names), "every parameter has its counterpart")
        self.assertEqual({n for group in names.values() for n in group},
                         {n.removeprefix("value/") for n in ours if n.startswith("value/")})
        with torch.no_grad():
            for theirs, group in names.items():
                parameters[theirs].copy_(in_their_form(ours, "value/", theirs, group))

        logits = model(input_ids=ours["tokens"].long()).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ours["targets"].long().flatten(), ignore_index=-100,
                                                 reduction="sum")
        loss.backward()
        self.expect_close(ours["logits"], logits.detach(), "logits")
        self.expect_close(ours["loss"], loss.detach(), "loss")
        for theirs, group in names.items():
            self.expect_close(in_their_form(ours, "grad/", theirs, group), parameters[theirs].grad, f"gradient of {theirs}")

        self.update(model, (ours["targets"] != -100).sum())
        for theirs, group in names.items():
            self.expect_close(in_their_form(ours, "updated/", theirs, group), parameters[theirs].detach(), f"updated {theirs}")

    def update(self, model, tokens):
        """One step from the mean loss; matrices decay, vectors do not. The numbers are those of hf_dump."""
        for parameter in model.parameters():
            parameter.grad /= tokens
        groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
                  {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
        torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-3).step()


for _name, _sizes in CASES.items():
    setattr(HuggingFaceReference, "test_" + _name.replace(" ", "_"), lambda self, sizes=_sizes: self.check(sizes))

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    HF_DUMP = sys.argv.pop(1)
    torch.set_num_threads(1)
    unittest.main()
