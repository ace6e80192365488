"""`lockstep generate`: from the checkpoint of a run. generate_test.py BUILD_FOLDER"""
import json

import support

PROMPT = "Anne had been"
COUNT = 12


class GenerateTest(support.LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for preset in ("gpt2-test", "llama-test"):
            cls.train(preset, f"--model.preset={preset}", "--train.steps=40", "--optimizer.lr=3e-3", ranks=2)

    def generate(self, *arguments, run="gpt2-test"):
        """The answer, less its timing and what both kinds of prompt share."""
        result = self.do("generate", f"runs/{run}", "--json", *arguments)
        self.assertEqual(result.err, "")
        answer = result.json()
        timing = answer.pop("timing")
        self.assertGreater(timing["first_token_seconds"], 0)
        if "results" not in answer:
            self.assertEqual(list(answer), ["ids", "text", "prompt_tokens", "stopped_by"])
        return answer

    def test_greedy_is_the_same_each_time(self):
        for run in ("gpt2-test", "llama-test"):
            first, second = (self.generate("--prompt", PROMPT, "--max-new-tokens", COUNT, run=run) for _ in range(2))
            self.assertEqual(first, second)
            self.assertTrue(first["text"].startswith(PROMPT))

    def test_ids_are_prompt_and_continuation(self):
        one = self.generate("--prompt", PROMPT, "--max-new-tokens", 1)["ids"]
        many = self.generate("--prompt", PROMPT, "--max-new-tokens", COUNT)["ids"]
        self.assertEqual(len(many), len(one) - 1 + COUNT)
        self.assertEqual(many[: len(one)], one)
        self.assertTrue(all(0 <= number < 512 for number in many))

    def test_prompt_ids_are_the_same_as_the_prompt(self):
        by_text = self.generate("--prompt", PROMPT, "--max-new-tokens", COUNT)
        ids = ",".join(map(str, by_text["ids"][:-COUNT]))
        self.assertEqual(self.generate("--prompt-ids", ids, "--max-new-tokens", COUNT), by_text)

    def test_the_cache_changes_nothing(self):
        """The next token with all ids before it as a new prompt, against all at once with the cache. Sampled, so that the
        text is not always the same token; the draw of a position is the same both ways."""
        sampled = ["--temperature", 1, "--seed", 7]
        for run in ("gpt2-test", "llama-test"):
            with self.subTest(run):
                cached = self.generate("--prompt", PROMPT, "--max-new-tokens", COUNT, *sampled, run=run)["ids"]
                self.assertGreater(len(set(cached[-COUNT:])), COUNT // 2)
                for length in range(len(cached) - COUNT, len(cached), 3):
                    ids = ",".join(map(str, cached[:length]))
                    answer = self.generate("--prompt-ids", ids, "--max-new-tokens", 1, *sampled, run=run)["ids"]
                    self.assertEqual(answer, cached[: length + 1])

    def test_sampling_follows_its_seed(self):
        def sampled(seed, *more):
            return self.generate("--prompt", PROMPT, "--max-new-tokens", 20, "--temperature", "1", "--seed", seed, *more)

        self.assertEqual(sampled(1), sampled(1))
        self.assertNotEqual(sampled(1), sampled(2))
        self.assertEqual(sampled(1, "--top-k", 5), sampled(1, "--top-k", 5))
        greedy = self.generate("--prompt", PROMPT, "--max-new-tokens", 20)
        self.assertEqual(sampled(1, "--top-k", 1), greedy)
        self.assertEqual(sampled(3, "--top-p", "1e-6"), greedy)

    def test_without_a_number_it_takes_what_fits(self):
        ids = self.generate("--prompt-ids", "7,8,9")["ids"]
        self.assertEqual(ids[:3], [7, 8, 9])
        self.assertLessEqual(len(ids), 64)

    def test_the_text_for_people(self):
        result = self.do("generate", "runs/gpt2-test", "--prompt", PROMPT, "--max-new-tokens", COUNT)
        expected = self.generate("--prompt", PROMPT, "--max-new-tokens", COUNT)["text"]
        self.assertEqual(result.out, expected + "\n")
        self.assertRegex(result.err, r"^first token after .* s; prompt \d+ tokens, .* tok/s; then \d+ tokens, .* tok/s\n$")

    def test_run_step_and_toml_name_the_same(self):
        expected = self.generate("--prompt", PROMPT, "--max-new-tokens", COUNT)
        for words in (["runs/gpt2-test/"], ["runs/gpt2-test/checkpoints"], ["runs/gpt2-test/checkpoints/step-00000040"],
                      ["run.toml", "--run.name=gpt2-test"]):
            result = self.do("generate", *words, "--json", "--prompt", PROMPT, "--max-new-tokens", COUNT).json()
            result.pop("timing")
            self.assertEqual(result, expected)

    def test_a_batch_gives_each_prompt_what_it_gets_alone(self):
        """More prompts than a step takes, of several lengths, sampled and greedy, from flags and files."""
        prompts = [" ".join(["Anne had been", "to the sea", "with her father", "and"][:1 + i % 4]) + "!" * (i % 5) for i in range(19)]
        (self.folder / "prompts.txt").write_text("\n".join(prompts) + "\n")
        (self.folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        for run in ("gpt2-test", "llama-test"):
            for options in ([], ["--temperature", 1, "--top-p", 0.9, "--repetition-penalty", 1.2]):
                options = ["--max-new-tokens", COUNT, *options]
                together = self.generate("--prompt-file", "prompts.txt", *options, run=run)["results"]
                self.assertEqual(self.generate("--prompt-file", "prompts.jsonl", *options, run=run)["results"], together)
                for i in (0, 3, 17):
                    self.assertEqual(self.generate("--prompt", prompts[i], *options, run=run), together[i])
                some = self.generate("--prompt", prompts[5], "--prompt-ids", "1,2,3", "--prompt", prompts[2], *options, run=run)
                self.assertEqual([some["results"][0], some["results"][2]], [together[5], together[2]])

    def test_stop_texts(self):
        text = self.generate("--prompt", PROMPT, "--max-new-tokens", 20)["text"]
        stop = text[len(PROMPT) + 5:len(PROMPT) + 9]
        answer = self.generate("--prompt", PROMPT, "--max-new-tokens", 20, "--stop", "never in it", "--stop", stop)
        self.assertEqual(answer["text"], text[:text.index(stop, len(PROMPT))])
        self.assertEqual(answer["stopped_by"], "stop")
        shown = self.do("generate", "runs/gpt2-test", "--prompt", PROMPT, "--max-new-tokens", 20, "--stop", stop)
        self.assertEqual(shown.out, answer["text"] + "\n")

    def test_ranks_that_hold_the_model_together_say_the_same(self):
        """gpt2-test has 12 heads; llama-test fewer key/value heads than 4 ranks: some are shared."""
        for run in ("gpt2-test", "llama-test"):
            alone = self.generate("--prompt", PROMPT, "--prompt", "It", "--max-new-tokens", COUNT, run=run)
            for ranks in (["-n", 2], ["--parallel.tp=4"]):
                result = self.do("generate", f"runs/{run}", "--json", "--prompt", PROMPT, "--prompt", "It", "--max-new-tokens", COUNT,
                                 *ranks, "--threads", 1).json()
                timing = result.pop("timing")
                self.assertEqual(result, alone)
                self.assertEqual(timing["ranks"], int(str(ranks[-1])[-1]))
                self.assertTrue(0 < timing["communication_share"] < 1, timing)

    def test_heads_that_the_ranks_cannot_share_are_refused(self):
        for words, arguments in ((["heads(12) % tp(5) = 2"], ["-n", 5]), (["parallel.tp(2) != -n 3"], ["-n", 3, "--parallel.tp=2"])):
            refused = self.lockstep("generate", "runs/gpt2-test", "--prompt", PROMPT, *arguments)
            self.assertEqual(refused.code, 2, refused)
            for word in ["LS1007", *words]:
                self.assertIn(word, refused.err)

    def test_a_run_without_tokenizer_speaks_in_ids(self):
        lines = [line for line in support.CONFIG.splitlines() if not line.startswith("tokenizer")]
        (self.folder / "ids.toml").write_text("\n".join(lines))
        self.do("train", "ids.toml", "--run.name=ids", "--train.steps=2", "--model.vocab_size=512")
        answer = self.generate("--prompt-ids", "1,2", "--max-new-tokens", 3, run="ids")
        self.assertIsNone(answer["text"])
        result = self.do("generate", "runs/ids", "--prompt-ids", "1,2", "--max-new-tokens", 3)
        self.assertEqual(result.out, ",".join(map(str, answer["ids"])) + "\n")
        refused = self.lockstep("generate", "runs/ids", "--prompt", PROMPT)
        self.assertEqual(refused.code, 7, refused)
        self.assertIn("--prompt-ids", refused.err)


if __name__ == "__main__":
    support.main()
