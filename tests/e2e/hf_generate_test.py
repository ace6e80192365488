"""`lockstep generate` from model directories of Hugging Face, token for token as transformers. hf_generate_test.py BUILD_FOLDER"""
import functools
import json
import shutil

import support
import torch
import transformers

SIZES = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
         "num_key_value_heads": 4, "max_position_embeddings": 128}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
CONFIGS = {
    "gpt2": transformers.GPT2Config(vocab_size=512, n_positions=128, n_embd=64, n_layer=2, n_head=8, **NO_TOKENS),
    "llama": transformers.LlamaConfig(**SIZES, **NO_TOKENS, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
    "mistral": transformers.MistralConfig(**SIZES, **NO_TOKENS, head_dim=16, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SIZES, **NO_TOKENS, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZES, **NO_TOKENS, head_dim=16),
    "mixtral": transformers.MixtralConfig(**SIZES, **NO_TOKENS, num_local_experts=8, num_experts_per_tok=2),
    "qwen3_moe": transformers.Qwen3MoeConfig(**SIZES, **NO_TOKENS, head_dim=16, num_experts=6, num_experts_per_tok=3,
                                             moe_intermediate_size=32, mlp_only_layers=[0], norm_topk_prob=True),
    "deepseek_v3": transformers.DeepseekV3Config(
        **{**SIZES, "num_key_value_heads": 8}, **NO_TOKENS, q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=16,
        n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, moe_intermediate_size=32, first_k_dense_replace=1,
        num_nextn_predict_layers=0, rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
                                                     "mscale_all_dim": 1.0, "original_max_position_embeddings": 32}),
}
PROMPTS = [[1], [5, 6, 7, 8, 9, 10, 11], [100, 3, 400], list(range(30, 60))]
COUNT = 24


class HfGenerateTest(support.LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = {}
        for family, config in CONFIGS.items():
            torch.manual_seed(7)
            model = transformers.AutoModelForCausalLM.from_config(config).eval()
            for parameter in model.parameters():  # wide enough apart that no two logits are nearly equal
                parameter.data.mul_(4) if parameter.dim() > 1 else parameter.data.add_(torch.randn_like(parameter) * 0.1)
            model.save_pretrained(cls.folder / family)
            cls.models[family] = model

    def theirs(self, family, prompt, **options):
        """Greedy ids, and the smallest distance between the two largest logits of a step."""
        return self.generated(family, tuple(prompt), **options)

    @classmethod
    @functools.cache
    def generated(cls, family, prompt, **options):
        out = cls.models[family].generate(torch.tensor([prompt]), max_new_tokens=COUNT, do_sample=False, output_logits=True,
                                          return_dict_in_generate=True, **options)
        return out.sequences[0].tolist(), min(float(torch.topk(step[0], 2).values.diff().abs()) for step in out.logits)

    def ours(self, family, *arguments):
        prompts = [word for prompt in PROMPTS for word in ("--prompt-ids", ",".join(map(str, prompt)))]
        return self.do("generate", "--model", f"hf:{family}", *prompts, "--max-new-tokens", COUNT, "--json", *arguments).json()

    def test_greedy_is_transformers_token_for_token(self):
        for family in CONFIGS:
            answers = self.ours(family)["results"]
            for prompt, answer in zip(PROMPTS, answers, strict=True):
                with self.subTest(family=family, prompt=prompt):
                    expected, gap = self.theirs(family, prompt)
                    self.assertGreater(gap, 1e-4)  # else another rounding could choose otherwise
                    self.assertEqual(answer["ids"], expected)

    def test_two_and_four_ranks_say_the_same(self):
        for family in ("gpt2", "llama", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3"):
            alone = self.ours(family)["results"]
            for ranks in (2, 4):
                with self.subTest(family=family, ranks=ranks):
                    self.assertEqual(self.ours(family, "-n", ranks, "--threads", 1)["results"], alone)

    def test_experts_shared_out_are_transformers(self):
        """The first prompt is one row: all ranks but one have none."""
        for family, layouts in (("mixtral", ((2, 2, 1), (4, 4, 1))), ("qwen3_moe", ((2, 2, 1), (4, 2, 2))),
                                ("deepseek_v3", ((2, 1, 2), (4, 4, 1)))):
            expected = [self.theirs(family, prompt)[0] for prompt in PROMPTS]
            for ranks, ep, etp in layouts:
                with self.subTest(family=family, ranks=ranks, ep=ep, etp=etp):
                    answer = self.ours(family, "-n", ranks, f"--parallel.ep={ep}", f"--parallel.etp={etp}", "--threads", 1)
                    self.assertEqual([result["ids"] for result in answer["results"]], expected)
                    self.assertTrue(0 < answer["timing"]["communication_share"] < 1, answer["timing"])

    def test_repetition_penalty_is_transformers(self):
        answers = self.ours("llama", "--repetition-penalty", 1.3)["results"]
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            self.assertEqual(answer["ids"], self.theirs("llama", prompt, repetition_penalty=1.3)[0])

    def test_the_end_of_a_text_is_what_the_files_say(self):
        """generation_config.json before config.json, one id or several."""
        expected, _ = self.theirs("llama", PROMPTS[1])
        new = expected[len(PROMPTS[1]):]
        shutil.copytree(self.folder / "llama", self.folder / "ends")
        (self.folder / "ends" / "generation_config.json").write_text(json.dumps({"eos_token_id": [511, new[6]]}))
        answer = self.ours("ends")["results"][1]
        self.assertEqual(answer["ids"], expected[:len(PROMPTS[1]) + new.index(new[6]) + 1])
        self.assertEqual(answer["stopped_by"], "eos")
        self.assertEqual(self.ours("ends", "--ignore-eos")["results"][1]["ids"], expected)

    def test_what_is_refused(self):
        for words, arguments in ((["heads(8) % tp(3) = 2", "LS1007"], ["-n", 3]), (["LS1005"], ["--parallel.tp=x"]),
                                 (["--train.steps", "LS1002"], ["--train.steps=3"])):
            refused = self.lockstep("generate", "--model", "hf:llama", "--prompt-ids", "1", *arguments)
            self.assertEqual(refused.code, 2, refused)
            for word in words:
                self.assertIn(word, refused.err)
        self.assertEqual(self.lockstep("generate", "hf:nowhere", "--prompt-ids", "1").code, 7)

    def test_experts_that_the_ranks_cannot_share_are_refused(self):
        for family, words, arguments in (
                ("qwen3_moe", ["LS1007", "model.experts(6) % ep(4) = 2", "use ep 2 or 1"], ["-n", 4, "--parallel.ep=4"]),
                ("mixtral", ["LS1007", "tp(2) = 2 ranks of a stage % ep(4) = 2", "-n 4"], ["-n", 2, "--parallel.ep=4"]),
                ("mixtral", ["LS1007", "2 problems", "heads(8) % tp(3) = 2", "% ep(2) = 1"], ["-n", 3, "--parallel.ep=2"]),
                ("llama", ["LS1007", "ep(2) ranks share out experts, but the model has none", "use ep 1"], ["--parallel.ep=2"]),
                ("mixtral", ["LS1005", "--parallel.ep 0"], ["--parallel.ep=0"])):
            refused = self.lockstep("generate", "--model", f"hf:{family}", "--prompt-ids", "1", *arguments)
            self.assertEqual(refused.code, 2, refused)
            for word in words:
                self.assertIn(word, refused.err)


if __name__ == "__main__":
    support.main()
