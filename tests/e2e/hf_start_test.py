"""Training that starts from a Hugging Face model directory, and what of it the run and its export keep."""
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

import support

SEQ, BATCH = 32, 8
MODELS = {
    "gpt2": transformers.GPT2Config(vocab_size=512, n_positions=48, n_embd=24, n_layer=2, n_head=4, resid_pdrop=0.1,
                                    bos_token_id=0, eos_token_id=0),
    "qwen3": transformers.Qwen3Config(vocab_size=512, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, head_dim=8, intermediate_size=40, max_position_embeddings=64,
                                      tie_word_embeddings=True, bos_token_id=0, eos_token_id=0),
    "mistral": transformers.MistralConfig(vocab_size=512, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                                          num_key_value_heads=2, intermediate_size=40, max_position_embeddings=64,
                                          sliding_window=40, bos_token_id=0, eos_token_id=0),
    "mixtral": transformers.MixtralConfig(vocab_size=512, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                                          num_key_value_heads=2, intermediate_size=40, max_position_embeddings=64,
                                          num_local_experts=4, num_experts_per_tok=2, bos_token_id=0, eos_token_id=0),
    "deepseek_v3": transformers.DeepseekV3Config(vocab_size=512, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                                                 num_key_value_heads=4, intermediate_size=40, max_position_embeddings=64, q_lora_rank=10,
                                                 kv_lora_rank=12, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=6, n_routed_experts=4,
                                                 num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=20,
                                                 first_k_dense_replace=1, bos_token_id=0, eos_token_id=0),
}

# What lies beside a tokenizer.json, of which a run must not change a byte.
BESIDE = {
    "tokenizer_config.json": '{"bos_token":  "<|endoftext|>", "chat_template": "not this one: {{ nonsense() }}"}\n',
    "special_tokens_map.json": '{"eos_token": {"content": "<|endoftext|>", "lstrip": false}}',
    "added_tokens.json": '{"<|endoftext|>": 0}\r\n',
    "chat_template.jinja": "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\u2603{% endfor %}\n<assistant>",
    "generation_config.json": '{"eos_token_id": [7, 0], "max_length": 20}',
}


def write_model(folder, config):
    """Random weights, of a size at which a wrong one would show."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


class StartsFromHuggingFace(support.LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = {}
        for name, config in MODELS.items():
            cls.models[name] = write_model(cls.folder / name, config)
            shutil.copy(cls.folder / "tok.json", cls.folder / name / "tokenizer.json")
        for name, text in BESIDE.items():
            (cls.folder / "qwen3" / name).write_bytes(text.encode())
        text = support.CONFIG.replace('tokenizer = "tok.json"\n', "shuffle = false\n").replace('preset = "gpt2-test"\n', "")
        (cls.folder / "from.toml").write_text(text)

    def start(self, verb, model, *arguments, ranks=2):
        return self.do(verb, "from.toml", f"--model.from=hf:{model}", "-n", ranks, *arguments)

    def first_loss(self, name):
        tokens = np.fromfile(self.folder / "austen.bin", dtype="<u2").astype(np.int64)[:SEQ * BATCH + 1]
        inputs, targets = (torch.from_numpy(tokens[i:i + SEQ * BATCH].reshape(BATCH, SEQ)) for i in (0, 1))
        with torch.no_grad():
            logits = self.models[name](input_ids=inputs).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()

    def test_the_first_loss_is_that_of_transformers(self):
        for name in MODELS:
            for ranks in (1, 2):
                run = f"{name}-{ranks}"
                result = self.start("train", name, f"--run.name={run}", "--train.steps=1", ranks=ranks)
                self.assertIn(f"starts from hf:{name}", result.out + result.err)
                self.assert_close({1: self.losses(run)[1]}, {1: self.first_loss(name)}, 1e-5)

    def test_experts_go_to_any_rank_and_their_export_comes_back(self):
        expected = self.first_loss("mixtral")
        for number, arguments in enumerate((["--parallel.ep=2"], ["--parallel.tp=2"], ["--parallel.tp=2", "--parallel.ep=2"],
                                            ["--parallel.tp=2", "--parallel.etp=2"], ["--parallel.ep=2", "--parallel.zero=3"])):
            with self.subTest(arguments):
                run = f"experts-{number}"
                self.start("train", "mixtral", f"--run.name={run}", "--train.steps=1", *arguments)
                self.assert_close({1: self.losses(run)[1]}, {1: expected}, 1e-5)
        run = self.run_folder("experts-0")
        self.do("checkpoint", "export", run, "experts-exported", "--to", "hf")
        theirs = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "experts-exported")
        self.assertEqual(theirs.config.num_local_experts, 4)
        self.do("checkpoint", "verify", "experts-exported")
        self.assertIn("all equal", self.do("checkpoint", "diff", run, "experts-exported").out)

    def test_a_bias_of_the_router_is_nowhere_in_the_files(self):
        result = self.lockstep("train", "from.toml", "--model.from=hf:mixtral", "--run.name=biased", "--moe.balance=bias")
        self.assertNotEqual(result.code, 0, result)
        self.assertIn("bias", result.err)

    def test_the_run_keeps_what_it_came_from_and_goes_on_from_its_checkpoint(self):
        self.start("train", "qwen3", "--run.name=kept", "--train.steps=2")
        for ours, theirs in (("hf_config.json", "config.json"), ("tokenizer.json", "tokenizer.json")):
            self.assertEqual((self.run_folder("kept") / ours).read_bytes(), (self.folder / "qwen3" / theirs).read_bytes())
        result = self.start("train", "qwen3", "--run.name=kept", "--train.steps=4")
        self.assertIn("resumed from", result.out + result.err)
        self.assertNotIn("starts from hf:", result.out + result.err)
        self.start("train", "qwen3", "--run.name=straight", "--train.steps=4")
        self.assert_close(self.losses("kept"), self.losses("straight"), 1e-6)

    def assert_keeps_the_files(self, folder):
        for name in ("tokenizer.json", *BESIDE):
            self.assertEqual((folder / name).read_bytes(), (self.folder / "qwen3" / name).read_bytes(), f"{folder}/{name}")

    def talk(self, model):
        done = subprocess.run(self.command("chat", model, "--max-new-tokens", 6), cwd=self.folder, input="Anne\nand\n",
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_chat_template_and_end_tokens_travel_with_the_run_and_its_export(self):
        self.start("train", "qwen3", "--run.name=talks", "--train.steps=1", ranks=1)
        run = self.run_folder("talks")
        self.assert_keeps_the_files(run)
        self.do("checkpoint", "export", run, "talks-exported", "--to", "hf")
        self.assert_keeps_the_files(self.folder / "talks-exported")
        self.assertEqual(self.talk(run), self.talk("talks-exported"))
        # The end tokens are those of generation_config.json, of a run as of a model directory.
        generated = lambda model: self.do("generate", model, "--prompt", "Anne", "--json", "--max-new-tokens", 8).json()["ids"]  # noqa: E731
        free = generated(run)
        end = next(token for token in free[-8:] if token not in (7, 0))
        for model in (run, self.folder / "talks-exported"):
            (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, end]}))
            self.assertEqual(generated(model), free[:free.index(end, len(free) - 8) + 1], model)
        (run / "generation_config.json").write_text(BESIDE["generation_config.json"])

        # A run that begins with the other's checkpoint keeps them too, whatever the tokenizer is called.
        for name, arguments in (("second", []), ("third", ["--data.tokenizer=tok.json"])):
            self.do("train", "from.toml", f"--run.name={name}", "--train.steps=2", f"--checkpoint.resume={run}/checkpoints",
                    *self.sizes("talks"), *arguments)
            self.assert_keeps_the_files(self.run_folder(name))
            self.assertEqual((self.run_folder(name) / "hf_config.json").read_bytes(),
                             (self.folder / "qwen3" / "config.json").read_bytes())

    def sizes(self, run):
        """The model of a run as fields, without where it came from."""
        model = json.loads((self.run_folder(run) / "env.json").read_text())["model"]
        keys = ("family", "layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "vocab_size", "tied", "norm_eps",
                "rope_theta", "max_seq_len")
        return [f"--model.{key}={json.dumps(model[key]).strip(chr(34))}" for key in keys]

    def test_another_tokenizer_leaves_the_files_of_the_models(self):
        self.prepare_tokenizer("small.json", 300)
        self.start("train", "qwen3", "--run.name=other", "--train.steps=1", "--data.tokenizer=small.json", ranks=1)
        run = self.run_folder("other")
        self.assertEqual((run / "tokenizer.json").read_bytes(), (self.folder / "small.json").read_bytes())
        self.assertFalse([name for name in BESIDE if (run / name).exists()])
        self.assertTrue((run / "hf_config.json").exists())

    def test_a_directory_a_file_in_it_and_hf_are_one_place_everywhere(self):
        (self.folder / "short.txt").write_text("Anne was a\n" * 40)
        shown, made, inspected = set(), set(), set()
        for model in ("qwen3", "hf:qwen3", "qwen3/", "qwen3/config.json"):
            shown.add(self.do("show", "layout", "from.toml", f"--model.from={model}", f"--data.tokenizer={model}").out
                      if not model.endswith(".json") else
                      self.do("show", "layout", "from.toml", f"--model.from={model}", "--data.tokenizer=qwen3/tokenizer.json").out)
            inspected.add(self.do("checkpoint", "inspect", model).out)
            self.assertIn("all equal", self.do("checkpoint", "diff", model, "hf:qwen3").out)
            self.do("generate", model, "--prompt", "Anne", "--max-new-tokens", 1)
        for tokenizer in ("qwen3", "hf:qwen3", "qwen3/", "qwen3/tokenizer.json", "hf:qwen3/tokenizer.json"):
            self.do("data", "prepare", "short.txt", "--tokenizer", tokenizer, "--out", "short")
            made.add((self.folder / "short.bin").read_bytes())
            self.assertIn("tokenizer (byte-level BPE)", self.do("data", "inspect", tokenizer).out)
            self.do("doctor", "from.toml", "--model.from=qwen3", f"--data.tokenizer={tokenizer}")
        self.assertEqual([len(shown), len(made), len(inspected)], [1, 1, 1])
        self.do("train", "from.toml", "--model.from=qwen3", "--data.tokenizer=qwen3", "--run.name=bare", "--train.steps=1")
        self.assert_keeps_the_files(self.run_folder("bare"))

    def test_what_has_no_effect_is_said(self):
        result = self.start("train", "gpt2", "--run.name=notes", "--train.steps=1")
        self.assertIn("resid_pdrop = 0.1 is not taken", result.out + result.err)

    def test_verify_starts_both_sides_from_the_weights(self):
        for arguments in ([], ["--parallel.tp=2"], ["--parallel.tp=2", "--parallel.sequence_parallel=false"],
                          ["--parallel.zero=1", "--train.precision=bf16"], ["--parallel.zero=3"]):
            self.assertTrue(self.start("verify", "qwen3", "--steps=2", "--json", *arguments).json()["ok"])

    def test_show_knows_the_model_without_its_weights(self):
        shown = self.do("show", "layout", "from.toml", "--model.from=hf:mistral", "-n", 2).out
        self.assertIn("mistral 2 x 24, 4 heads (2 kv), ffn 40, vocab 512", shown)

    def test_bad_input_is_refused_before_anything_starts(self):
        def refused(code, *arguments):
            result = self.lockstep("train", "from.toml", "--run.name=refused", *arguments)
            self.assertIn(f"error {code}", result.err, result)
            self.assertFalse(self.run_folder("refused").exists())
            return result.err

        for nowhere in ("nowhere", "hf:nowhere", "tok.json", "runs"):
            refused("LS1115", f"--model.from={nowhere}")
        for nowhere in ("nowhere", "hf:nowhere", "hf:", "runs"):
            refused("LS1203", "--model.from=gpt2", f"--data.tokenizer={nowhere}")
        (self.folder / "odd").mkdir()
        shutil.copy(self.folder / "tok.json", self.folder / "odd" / "tokenizer.json")
        (self.folder / "odd" / "chat_template.jinja").mkdir()
        refused("LS1203", "--model.from=gpt2", "--data.tokenizer=odd")
        self.assertIn("model.layers beside model.from", refused("LS1116", "--model.from=hf:gpt2", "--model.layers=3"))
        self.assertIn("the model has learned so many positions",
                      refused("LS1121", "--model.from=hf:gpt2", "--train.seq_len=49"))
        self.assertIn("model.max_seq_len = 64", refused("LS1121", "--model.from=hf:mistral", "--train.seq_len=65"))
        broken = self.folder / "broken"
        shutil.copytree(self.folder / "gpt2", broken)
        text = (broken / "config.json").read_text().replace("gelu_new", "relu")
        (broken / "config.json").write_text(text)
        self.assertIn('activation_function = "relu"', refused("LS1118", "--model.from=hf:broken"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    support.main()
