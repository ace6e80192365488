"""All model families against Hugging Face transformers: logits, loss, every gradient, parameters after one AdamW step; of experts also
how many tokens each gets and the auxiliary loss.

    hf_reference_test.py PATH_OF_hf_dump

A small random model is described by a config.json as transformers writes it. hf_dump reads that, runs our layers on
random parameters and writes everything; here the same parameters go into the transformers model of the same config.json.
Errors are max |ours - theirs| / max |theirs|, over each tensor. The config.json that we write of the model ourselves
must give the same model there.
"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

BOUND = 1e-5
HF_DUMP = ""

COMMON = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 0}
GPT2 = {**COMMON, "n_layer": 2, "n_positions": 24, "n_embd": 24, "n_head": 3}
LLAMA = {**COMMON, "num_hidden_layers": 2, "max_position_embeddings": 40, "hidden_size": 24, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 44}


MIXTRAL = {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}
QWEN3_MOE = {**LLAMA, "head_dim": 12, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}


DEEPSEEK = {**LLAMA, "num_key_value_heads": 4, "num_hidden_layers": 3, "q_lora_rank": 10, "kv_lora_rank": 12, "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
            "moe_intermediate_size": 20, "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0}


def rope(theta, **scaling):
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **scaling}}


# With head_dim 16 and theta 500 the wavelengths are 6 to 1400 tokens: kept, between and stretched.
LLAMA3 = rope(500.0, rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)

# Wavelengths of 8 elements at theta 100: 6 to 200 tokens, of which 64 are the original length.
YARN = rope(100.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=8.0, beta_slow=1.0)

# name: (class of the configuration, its values, batch and length[, "v4": with rope_theta and rope_scaling[, coefficient of our
# auxiliary loss]])
CASES = {
    "gpt2": ("GPT2", GPT2, (2, 13)),
    "gpt2 untied": ("GPT2", {**GPT2, "n_head": 4, "n_inner": 40, "tie_word_embeddings": False}, (3, 1)),
    "llama": ("Llama", {**LLAMA, "head_dim": 8, "rms_norm_eps": 1e-5, **rope(5000.0)}, (2, 13)),
    "llama tied": ("Llama", {**LLAMA, "hidden_size": 32, "num_key_value_heads": 1, "tie_word_embeddings": True,
                             **rope(5000.0)}, (2, 24), "v4"),
    "llama with biases, beyond the original length": (
        "Llama", {**LLAMA, "head_dim": 16, "attention_bias": True, "mlp_bias": True, **LLAMA3}, (2, 40)),
    "llama beyond the original length": ("Llama", {**LLAMA, "head_dim": 16, **LLAMA3}, (2, 40), "v4"),
    "llama linear": ("Llama", {**LLAMA, **rope(1000.0, rope_type="linear", factor=3.0)}, (2, 21), "v4"),
    "mistral as long as its window": ("Mistral", {**LLAMA, "head_dim": 14, "sliding_window": 17, **rope(5000.0)}, (2, 17)),
    "mistral": ("Mistral", {**LLAMA, "num_key_value_heads": 4, "sliding_window": None, **rope(1e6)}, (2, 9), "v4"),
    "qwen2": ("Qwen2", {**LLAMA, "tie_word_embeddings": True, **rope(1e6)}, (2, 13), "v4"),
    "qwen2 untied": ("Qwen2", {**LLAMA, "num_key_value_heads": 1, **rope(1e4)}, (3, 7)),
    "qwen3": ("Qwen3", {**LLAMA, "head_dim": 12, **rope(1e6)}, (2, 13)),
    "qwen3 tied, with biases": ("Qwen3", {**LLAMA, "head_dim": 4, "num_key_value_heads": 1, "attention_bias": True,
                                          "tie_word_embeddings": True, **LLAMA3}, (2, 40), "v4"),
    "mixtral": ("Mixtral", {**MIXTRAL, **rope(1e6)}, (2, 13)),
    "mixtral that is balanced": ("Mixtral", {**MIXTRAL, "head_dim": 8, **rope(5000.0)}, (3, 9), "v4", 0.3),
    "mixtral of one layer and one sequence": ("Mixtral", {**MIXTRAL, "num_hidden_layers": 1, **rope(1e4)}, (1, 24), "v5", 0.5),
    "mixtral with a token to every expert": ("Mixtral", {**MIXTRAL, "num_local_experts": 3, "num_experts_per_tok": 3,
                                                         "tie_word_embeddings": True, **rope(1e6)}, (2, 7), "v5", 0.1),
    "mixtral with a token to one expert": ("Mixtral", {**MIXTRAL, "num_experts_per_tok": 1, **rope(1e6)}, (3, 4), "v4",
                                           0.2),  # without it the router's gradient is zero but for rounding
    "qwen3_moe": ("Qwen3Moe", {**QWEN3_MOE, "norm_topk_prob": True, **rope(1e6)}, (2, 13)),
    "qwen3_moe with weights as they are": ("Qwen3Moe", {**QWEN3_MOE, "num_hidden_layers": 3, "mlp_only_layers": [1],
                                                        "attention_bias": True, **rope(1e6)}, (2, 11), "v4", 0.3),
    "qwen3_moe of one layer with experts": ("Qwen3Moe", {**QWEN3_MOE, "decoder_sparse_step": 2, "norm_topk_prob": True, **rope(1e6)},
                                            (1, 17), "v5", 0.4),
    "llama yarn": ("Llama", {**LLAMA, "head_dim": 16, **YARN}, (2, 40), "v4"),
    "deepseek_v3": ("DeepseekV3", {**DEEPSEEK, **rope(1e4)}, (2, 13)),
    "deepseek_v3 yarn, that is balanced": (
        "DeepseekV3", {**DEEPSEEK, **YARN, "rope_parameters": {**YARN["rope_parameters"], "mscale": 1.0, "mscale_all_dim": 0.7}},
        (3, 24), "v4", 0.3),
    "deepseek_v3 of all groups, values wider than keys": (
        "DeepseekV3", {**DEEPSEEK, **YARN, "v_head_dim": 20, "topk_group": 4, "routed_scaling_factor": 1.0, "n_shared_experts": 2,
                       "first_k_dense_replace": 0, "rope_interleave": False, "tie_word_embeddings": True}, (2, 17), "v5", 0.2),
}


def write_config(config, folder, spelling):
    """As transformers 5 writes it, or with the rotary parameters as version 4 did."""
    config.save_pretrained(folder)
    if spelling != "v4":
        return
    path = Path(folder) / "config.json"
    values = json.loads(path.read_text())
    parameters = values.pop("rope_parameters")
    values["rope_theta"] = parameters.pop("rope_theta")
    values["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
    if values["model_type"] == "qwen3_moe":
        values["num_experts"] = values.pop("num_local_experts")
    path.write_text(json.dumps(values))


def run_ours(config, batch, length, spelling, aux):
    with tempfile.TemporaryDirectory() as folder:
        write_config(config, folder, spelling)
        subprocess.run([HF_DUMP, folder, str(batch), str(length), *([str(aux)] if aux else [])], check=True, timeout=120)
        index = json.loads((Path(folder) / "index.json").read_text())
        data = (Path(folder) / "data.bin").read_bytes()
        exported = transformers.AutoConfig.from_pretrained(Path(folder) / "exported")
    tensors = {}
    for entry in index:
        count = int(np.prod(entry["shape"], dtype=np.int64))
        values = np.frombuffer(data, dtype="<f4", count=count, offset=entry["offset"]).reshape(entry["shape"])
        tensors[entry["name"]] = torch.from_numpy(values.copy())
    return tensors, exported


def their_model(config):
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    return model.eval()  # no dropout


# Their part of a layer -> ours, to be stacked along dim 0; GPT-2's Conv1D holds [in, out]: transposed.
GPT2_PARTS = {"ln_1": ["attention_norm"], "attn.c_attn": ["attention.q", "attention.k", "attention.v"],
              "attn.c_proj": ["attention.out"], "ln_2": ["mlp_norm"], "mlp.c_fc": ["mlp.up"], "mlp.c_proj": ["mlp.down"]}
LLAMA_PARTS = {"input_layernorm": ["attention_norm"], "post_attention_layernorm": ["mlp_norm"],
               "self_attn.q_proj": ["attention.q"], "self_attn.k_proj": ["attention.k"], "self_attn.v_proj": ["attention.v"],
               "self_attn.o_proj": ["attention.out"], "self_attn.q_norm": ["attention.q_norm"],
               "self_attn.k_norm": ["attention.k_norm"], "mlp.gate_proj": ["mlp.gate"], "mlp.up_proj": ["mlp.up"],
               "mlp.down_proj": ["mlp.down"], "mlp.gate": ["experts.router"]}
DEEPSEEK_PARTS = {"self_attn.q_a_proj": ["attention.q_a"], "self_attn.q_a_layernorm": ["attention.q_a_norm"],
                  "self_attn.q_b_proj": ["attention.q_b"], "self_attn.kv_a_proj_with_mqa": ["attention.kv_a"],
                  "self_attn.kv_a_layernorm": ["attention.kv_a_norm"], "self_attn.kv_b_proj": ["attention.kv_b"],
                  "mlp.shared_experts.gate_proj": ["experts.shared.gate"], "mlp.shared_experts.up_proj": ["experts.shared.up"],
                  "mlp.shared_experts.down_proj": ["experts.shared.down"]}
# Of all experts in one parameter of theirs, one after the other.
STACKED_PARTS = {"mlp.experts.gate_up_proj": ["gate", "up"], "mlp.experts.down_proj": ["down"]}
ENDS = {"transformer.wte": "embed.tokens", "transformer.wpe": "embed.positions", "transformer.ln_f": "head.norm",
        "model.embed_tokens": "embed.tokens", "model.norm": "head.norm", "lm_head": "head"}


def our_names(theirs, ours):
    """`ours`: everything that hf_dump has written."""
    module, kind = theirs.rsplit(".", 1)
    if module in ENDS:
        return [f"{ENDS[module]}.{kind}"]
    _, _, index, part = theirs.split(".", 3)
    block = f"blocks.{index}"
    if kind == "e_score_correction_bias":
        return [f"{block}.experts.router.bias"]
    if part in STACKED_PARTS:
        count = sum(name.startswith(f"value/{block}.experts.") and name.endswith(".down.weight") and ".shared." not in name for name in ours)
        return [f"{block}.experts.{expert}.{name}.weight" for expert in range(count) for name in STACKED_PARTS[part]]
    part = part.removesuffix("." + kind)
    if part == "post_attention_layernorm" and f"value/{block}.experts_norm.weight" in ours:
        return [f"{block}.experts_norm.weight"]
    return [f"{block}.{name}.{kind}" for name in {**GPT2_PARTS, **LLAMA_PARTS, **DEEPSEEK_PARTS}[part]]


def in_their_form(tensors, prefix, theirs, shape):
    value = torch.cat([tensors[prefix + name] for name in our_names(theirs, tensors)])
    return value.t() if ".c_" in theirs and theirs.endswith("weight") else value.view(shape)


def aux_loss(router_logits, targets, config):
    """Theirs is of the whole batch and of all layers together, and counts each of a token's k assignments; ours of each sequence and layer,
    and counts them as shares. Summed as ours: every sequence by its number of targets that count."""
    length, k = targets.shape[1], config.num_experts_per_tok
    valid = (targets != -100).sum(1)
    return sum(weight * load_balancing_loss_func((layer[b * length:(b + 1) * length],), layer.shape[1], k) / k
               for layer in router_logits for b, weight in enumerate(valid))


def sigmoid_aux_loss(logits, chosen, targets):
    """Of one layer of deepseek_v3, for which transformers has none: DeepSeek-AI 2024, equations 17 to 20, summed as ours."""
    (count, length), experts, k = targets.shape, logits.shape[1], chosen.shape[1]
    shares = logits.sigmoid() / logits.sigmoid().sum(1, keepdim=True)
    sent = torch.stack([torch.bincount(one.flatten(), minlength=experts) for one in chosen.view(count, -1)]) / (length * k)
    return experts * ((targets != -100).sum(1) * (sent * shares.view(count, length, experts).mean(1)).sum(1)).sum()


class HuggingFaceReference(unittest.TestCase):
    def expect_close(self, ours, theirs, what):
        self.assertEqual(tuple(ours.shape), tuple(theirs.shape), what)
        error = ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()
        self.assertLessEqual(error, BOUND, what)

    def check(self, kind, values, size, spelling="v5", aux=0.0):
        config = getattr(transformers, kind + "Config")(**values)
        ours, exported = run_ours(config, *size, spelling, aux)
        model = their_model(config)
        parameters = dict(model.named_parameters())
        biases = {name: bias for name, bias in model.named_buffers() if name.endswith("e_score_correction_bias")}
        self.assertEqual({n for theirs in {**parameters, **biases} for n in our_names(theirs, ours)},
                         {n.removeprefix("value/") for n in ours if n.startswith("value/")},
                         "every parameter has its counterpart")
        with torch.no_grad():
            for theirs, parameter in {**parameters, **biases}.items():
                parameter.copy_(in_their_form(ours, "value/", theirs, parameter.shape))

        routed = []  # logits, weights and experts of each layer
        for module in model.modules():
            if type(module).__name__ == "DeepseekV3TopkRouter":
                module.register_forward_hook(lambda _module, _x, result: routed.append(result))
        softmax = hasattr(config, "num_experts_per_tok") and not biases
        out = model(input_ids=ours["tokens"].long(), **({"output_router_logits": True} if softmax else {}))
        logits = out.logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ours["targets"].long().flatten(), ignore_index=-100,
                                                 reduction="sum")
        more = self.experts(model, ours, out.router_logits, loss, aux) if softmax else self.sigmoid_experts(ours, routed, aux)
        (loss + more).backward()
        self.expect_close(ours["logits"], logits.detach(), "logits")
        self.expect_close(ours["loss"], loss.detach(), "loss")
        self.same_model_from(exported, model, ours["tokens"].long(), logits)
        for theirs, parameter in parameters.items():
            self.expect_close(in_their_form(ours, "grad/", theirs, parameter.shape), parameter.grad, f"gradient of {theirs}")

        self.update(model, (ours["targets"] != -100).sum())
        for theirs, parameter in parameters.items():
            self.expect_close(in_their_form(ours, "updated/", theirs, parameter.shape), parameter.detach(), f"updated {theirs}")

    def experts(self, model, ours, router_logits, loss, aux):
        """How many tokens each expert got; what the auxiliary loss adds to the sum of losses."""
        loads = [ours[name] for name in sorted(ours) if name.startswith("loads/")]
        self.assertEqual(len(loads), len(router_logits))
        for layer, load in zip(router_logits, loads):
            chosen = torch.topk(layer, model.config.num_experts_per_tok).indices
            self.assertEqual(load[:-3].tolist(), torch.bincount(chosen.flatten(), minlength=layer.shape[1]).tolist())
            self.assertEqual(load[-3], 0, "dropped")
        if not aux:
            return 0
        targets = ours["targets"].long()
        theirs = aux_loss(router_logits, targets, model.config)
        self.expect_close(sum(load[-2] for load in loads), theirs.detach(), "auxiliary loss")
        if len(router_logits) == len(targets) == 1:  # the same numbers in both definitions
            model.router_aux_loss_coef = aux / model.config.num_experts_per_tok
            whole = model(input_ids=ours["tokens"].long(), labels=targets, shift_labels=targets, output_router_logits=True).loss
            self.expect_close((ours["loss"] + aux * loads[0][-2]) / (targets != -100).sum(), whole.detach(), "their whole loss")
        return aux * theirs

    def sigmoid_experts(self, ours, routed, aux):
        loads = [ours[name] for name in sorted(ours) if name.startswith("loads/")]
        self.assertEqual(len(loads), len(routed))
        for (logits, _, chosen), load in zip(routed, loads):
            self.assertEqual(load[:-3].tolist(), torch.bincount(chosen.flatten(), minlength=logits.shape[1]).tolist())
        if not aux:
            return 0
        theirs = sum(sigmoid_aux_loss(logits, chosen, ours["targets"].long()) for logits, _, chosen in routed)
        self.expect_close(sum(load[-2] for load in loads), theirs.detach(), "auxiliary loss")
        return aux * theirs

    def same_model_from(self, exported, model, tokens, logits):
        again = their_model(exported)
        again.load_state_dict(model.state_dict())
        with torch.no_grad():
            self.assertTrue(torch.equal(again(input_ids=tokens).logits, logits), "the model of the config.json we write")

    def update(self, model, tokens):
        """One step from the mean loss; matrices decay, vectors do not. The numbers are those of hf_dump."""
        for parameter in model.parameters():
            parameter.grad /= tokens
        groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
                  {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
        torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-3).step()


for _name, _case in CASES.items():
    setattr(HuggingFaceReference, "test_" + _name.replace(",", "").replace(" ", "_"), lambda self, case=_case: self.check(*case))

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    HF_DUMP = sys.argv.pop(1)
    torch.set_num_threads(1)
    unittest.main()
