"""`lockstep generate` over ranks that hold each text in parts. generate_context_test.py BUILD_FOLDER

lockstep/model/decode_context_test.cpp holds logits of more layouts against one rank."""
import support

LONG = "Anne had been to the sea with her father, and it was not easily forgotten."
PROMPTS = ("--prompt", LONG, "--prompt", "It", "--prompt", "She was", "--prompt-ids", "7", "--max-new-tokens", 9)


class GenerateContextTest(support.LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("llama-test", "--model.preset=llama-test", "--train.steps=30", "--optimizer.lr=3e-3", ranks=2)
        cls.train("mixtral-test", "--model.preset=mixtral-test", "--model.layers=2", "--train.steps=30", "--optimizer.lr=3e-3", ranks=2)

    def generate(self, run, *arguments):
        answer = self.do("generate", f"runs/{run}", "--json", "--threads", 1, *PROMPTS, *arguments).json()
        return answer.pop("timing"), answer

    def check(self, run, *layouts):
        for sampled in ([], ["--temperature", 1, "--seed", 7]):
            _, alone = self.generate(run, *sampled)
            self.assertGreater(max(len(result["ids"]) for result in alone["results"]), 20, "a prompt that is cut over 4 ranks")
            for ranks, arguments in layouts:
                with self.subTest(arguments=arguments, sampled=sampled):
                    timing, answer = self.generate(run, *arguments, *sampled)
                    self.assertEqual(answer, alone)
                    self.assertEqual(timing["ranks"], ranks)
                    self.assertTrue(0 < timing["communication_share"] < 1, timing)

    def test_a_dense_model(self):
        self.check("llama-test", (2, ["-n", 2, "--parallel.cp=2"]), (3, ["--parallel.cp=3"]),
                   (4, ["-n", 4, "--parallel.cp=2"]))

    def test_experts_over_the_same_ranks(self):
        self.check("mixtral-test", (2, ["--parallel.cp=2", "--parallel.ep=2"]), (4, ["--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4"]))

    def test_what_does_not_suit_is_refused_with_a_way_out(self):
        for arguments, words in ((["-n", 3, "--parallel.cp=2"], ["-n(3) % cp(2) = 1", "use -n 2"]),
                                 (["-n", 2, "--parallel.tp=2", "--parallel.cp=2"], ["tp(2) x cp(2) = 4 != -n 2", "-n 4"]),
                                 (["-n", 10, "--parallel.cp=2"], ["heads(12) % tp(5) = 2", "-n 8"])):
            refused = self.lockstep("generate", "runs/llama-test", "--prompt", "It", *arguments)
            self.assertEqual(refused.code, 2, refused)
            for word in ["LS1007", *words]:
                self.assertIn(word, refused.err)


if __name__ == "__main__":
    support.main()
