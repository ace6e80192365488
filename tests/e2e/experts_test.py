"""Experts through the program: a small Mixtral on real text, its metrics, checkpoints that go on over other ranks, generation, and
what is refused. experts_test.py BUILD_FOLDER

lockstep/train/verify_experts_test.cpp holds gradients and updates of many more layouts against one rank."""
import json
import re
from xml.etree import ElementTree

import support
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

MODEL = ("--model.preset=mixtral-test", "--model.layers=2")  # 8 experts, 2 of a token
BIAS = ("--model.router=sigmoid", "--model.router_groups=4", "--model.router_top_groups=2", "--model.shared_experts=1",
        "--moe.balance=bias")
DROPS = ("--moe.capacity_factor=0.75",)
CLOSE = 1e-4  # over steps, in which a token between two experts may go to the other one


def axes(**degrees):
    return [f"--parallel.{axis}={value}" for axis, value in degrees.items()]


class ExpertsTestCase(support.LockstepTest):
    @classmethod
    def experts(cls, name, ranks, *arguments, **degrees):
        return cls.train(name, *MODEL, "--moe.z_coefficient=0.001", *arguments, *axes(**degrees), ranks=ranks)


class TrainTest(ExpertsTestCase):
    STEPS = ("--train.steps=12", "--optimizer.lr=5e-3", "--data.validation=held", "--train.eval_every=6", "--train.eval_samples=6")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.experts("alone", 1, *cls.STEPS)

    # 2048 assignments a step, 256 an expert if all get as many.
    BALANCED = ("--train.steps=48", "--train.global_batch=32", "--optimizer.lr=2e-3", "--moe.aux_coefficient=0.1")

    def check(self, name, ranks, **degrees):
        result = self.experts(name, ranks, *self.STEPS, **degrees)
        losses, evaluations = self.losses(name), self.evaluations(name)
        self.assertLess(losses[12], losses[1] - 0.3, "it has learned")
        self.assertLess(evaluations[12], losses[1] - 0.3)
        self.assert_close(losses, self.losses("alone"), CLOSE)
        self.assert_close(evaluations, self.evaluations("alone"), CLOSE)
        self.experts(f"{name}-balanced", ranks, *self.BALANCED, **degrees)
        self.check_balance(f"{name}-balanced")
        return result

    def check_balance(self, name):
        """It learns with even load; its page and TensorBoard say the same as its metrics."""
        steps, events = self.metrics(name)
        self.assertLess(steps[-1]["train/loss"], steps[0]["train/loss"] - 1)
        loads = [event for event in events if event["event"] == "expert_load"]
        self.assertEqual([event["step"] for event in loads], list(range(1, 49)))
        tensorboard = self.tensorboard(name)
        page = (self.run_folder(name) / "report.html").read_text()
        svg = ElementTree.fromstring(page[page.index('<svg xmlns="http://www.w3.org/2000/svg" class="ls-load"'):].partition("</svg>")[0] + "</svg>")
        for block in ("blocks.0", "blocks.1"):
            routed = [list(map(int, event[block].split())) for event in loads]
            uneven = [8 * max(load) / sum(load) for load in routed]
            for row, load, event, ratio in zip(steps, routed, loads, uneven):
                self.assertEqual(row[f"experts/{block}/routed"], sum(load))
                self.assertEqual(sum(load), 32 * 32 * 2)
                self.assertEqual(row[f"experts/{block}/dropped"], event[f"{block}/dropped"])
                self.assertAlmostEqual(row[f"experts/{block}/max_over_mean"], ratio)
            # E / k = 4 is the worst. Without the loss both blocks end above 3; from four seeds with it the mean was 1.2 to 1.4.
            self.assertLess(sum(uneven[-12:]) / 12, 2, f"{block} of {name}: {uneven}")
            for number in ("routed", "dropped", "max_over_mean"):
                tag = f"experts/{block}/{number}"
                self.assertEqual(sorted(tensorboard[tag]), list(range(1, 49)))
                for row in steps:
                    self.assertAlmostEqual(tensorboard[tag][row["step"]], row[tag], delta=1e-6 * max(1, row[tag]))
            self.check_heat_map(svg, block, routed)

    def tensorboard(self, name):
        """Values by tag and step."""
        (path,) = (self.run_folder(name) / "tb").iterdir()
        seen = {}
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                seen.setdefault(value.tag, {})[event.step] = value.tensor.float_val[0] if value.tensor.float_val else value.simple_value
        return seen

    # Colours of the heat map: the largest ratio to the mean that has each.
    SHADES = ((0.25, "u2"), (0.5, "u1"), (0.8, "u0"), (1.25, None), (2, "o0"), (4, "o1"), (float("inf"), "o2"))

    def check_heat_map(self, svg, block, routed):
        """A row of 10 pixels for each expert, in the colours of its loads, a column for each step."""
        space = "{http://www.w3.org/2000/svg}"
        (group,) = [group for group in svg.iter(f"{space}g") if [text for text in group.findall(f"{space}text") if text.text == block]]
        ground = group.find(f"{space}rect")
        self.assertEqual(float(ground.get("height")), 80)
        numbers = [text.text for text in group.findall(f"{space}text") if "n" in text.get("class").split()]
        self.assertEqual(numbers, [str(expert) for expert in range(8)])
        left, width = float(ground.get("x")), float(ground.get("width")) / len(routed)
        drawn = [[None] * len(routed) for expert in range(8)]
        for path in group.findall(f"{space}path"):
            for begin, top, end in re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)v10H", path.get("d")):
                for step in range(round((float(begin) - left) / width), round((float(end) - left) / width)):
                    drawn[int(float(top) / 10)][step] = path.get("class")
        for step, load in enumerate(routed):
            for expert, count in enumerate(load):
                ratio = 8 * count / sum(load)
                shade = "z" if count == 0 else next(shade for above, shade in self.SHADES if ratio < above)
                self.assertEqual(drawn[expert][step], shade, f"{block}, expert {expert}, step {step + 1}: {ratio} of the mean")
        (line,) = [path for path in group.iter(f"{space}path") if path.get("class") == "l"]
        self.assertEqual(line.get("d").count("H"), len(routed))

    def evaluations(self, name):
        return {event["step"]: event["validation/loss"] for event in self.metrics(name)[1] if event["event"] == "eval"}

    def test_over_data_parallel_ranks(self):
        self.check("data", 4, ep=2)  # two ranks hold the same experts

    def test_in_stages(self):
        self.check("stages", 4, pp=2, ep=2)

    def test_however_tokens_travel(self):
        self.check("gathered", 2, ep=2, dispatcher="all_gather")
        self.check("nodes", 4, ep=4, dispatcher="hierarchical", ranks_per_node=2)
        self.experts("slots", 2, *self.STEPS, "--moe.static_buffers=true", ep=2)
        self.assert_close(self.losses("slots"), self.losses("alone"), CLOSE)

    def test_more_than_there_is_room_for(self):
        self.experts("rounds", 2, *self.STEPS, "--moe.imbalance_limit=1", ep=2)
        self.assert_close(self.losses("rounds"), self.losses("alone"), CLOSE)
        events = [event for event in self.metrics("rounds")[1] if event["event"] == "expert_overload"]
        self.assertTrue(events, "no routing is balanced to the row")
        for event in events:
            self.assertTrue({"blocks.0", "blocks.1"} & set(event))

    def test_loads(self):
        self.experts("drops", 2, "--train.steps=2", *DROPS, ep=2)
        self.experts("dropless", 2, "--train.steps=2", ep=2)
        for name in ("drops", "dropless"):
            steps, events = self.metrics(name)
            for row in steps:
                self.assertGreaterEqual(row["train/aux_loss"], 0.9 * 2)  # 1 a block where the load is even
                self.assertGreater(row["train/z_loss"], 0)
                for block in ("blocks.0", "blocks.1"):
                    self.assertEqual(row[f"experts/{block}/routed"], 8 * 32 * 2)
                    self.assertEqual(row[f"experts/{block}/dropped"] > 0, name == "drops")
                    self.assertTrue(1 <= row[f"experts/{block}/max_over_mean"] <= 4)
            loads = [event for event in events if event["event"] == "expert_load"]
            self.assertEqual([event["step"] for event in loads], [1, 2])
            for event in loads:
                numbers = list(map(int, event["blocks.1"].split()))
                self.assertEqual((len(numbers), sum(numbers)), (8, 8 * 32 * 2))

    def test_the_page_of_the_run_draws_them(self):
        self.experts("page", 2, "--model.experts=32", "--model.experts_per_token=1", "--train.steps=3", "--trace.steps=2", ep=2)
        page = (self.run_folder("page") / "report.html").read_text()
        self.assertIn("<h2>The step</h2>", page)  # the traced one
        self.assertIn("steps 1 to 3", page)
        events = [event for event in self.metrics("page")[1] if event["event"] == "expert_load"]
        for block in ("blocks.0", "blocks.1"):
            loads = [list(map(int, event[block].split())) for event in events]
            dead = [expert for expert, load in enumerate(loads[-1]) if load == 0]
            lived = {expert: max((step + 1 for step in range(3) if loads[step][expert]), default=0) for expert in dead}
            names = ", ".join(f"{expert} ({f'step {lived[expert]}' if lived[expert] else 'never'})" for expert in dead[:16])
            row = page[page.index(f"<td>{block}</td>"):].splitlines()[0]
            self.assertIn(f'<td class="l">{names or "none"}', row)

    def test_neither_ranks_nor_microbatches_change_the_losses(self):
        for router, words in (("aux", DROPS), ("bias", BIAS)):
            self.experts(router, 1, "--train.steps=3", *words)
            alone = {row["step"]: row["train/aux_loss"] for row in self.metrics(router)[0]}
            for number, (ranks, more) in enumerate(((2, axes(ep=2)), (2, axes(ep=2) + ["--train.micro_batch=4"]),
                                                    (4, axes(tp=2, ep=4)), (2, axes(tp=2, etp=2)))):
                name = f"{router}{number}"
                self.experts(name, ranks, "--train.steps=3", *words, *more)
                self.assert_close(self.losses(name), self.losses(router), CLOSE)
                self.assert_close({row["step"]: row["train/aux_loss"] for row in self.metrics(name)[0]}, alone, CLOSE)

    def test_twice_gives_the_same_bits(self):
        for name in ("once", "twice"):
            self.experts(name, 4, "--train.steps=2", *BIAS, *DROPS, tp=2, ep=2)
        self.assertEqual(self.losses("once"), self.losses("twice"))
        self.assertEqual(self.tensors("once", 2), self.tensors("twice", 2))

    def test_verify(self):
        result = self.lockstep("verify", "run.toml", "-n", 4, "--json", *MODEL, *BIAS, *DROPS, *axes(ep=4, zero=3))
        self.assertEqual(result.code, 0, result)
        report = result.json()
        self.assertTrue(report["ok"])
        self.assertIn("ep 4", report["layout"])


class CheckpointTest(ExpertsTestCase):
    def test_a_run_goes_on_over_other_ranks(self):
        common = ("--model.dropout=0.1", "--checkpoint.every=2", *BIAS)
        self.experts("whole", 1, "--train.steps=8", *common)
        for number, (ranks, degrees) in enumerate(((4, dict(ep=4)), (1, {}), (2, dict(ep=2, zero=3)), (4, dict(tp=2, ep=2)))):
            result = self.experts("moved", ranks, f"--train.steps={2 * number + 2}", *common, **degrees)
            if number:
                self.assertIn(f"at step {2 * number}\n", result.err)
        self.assert_close(self.losses("moved"), self.losses("whole"), CLOSE)

    def test_experts_that_are_cut_go_on_whole(self):
        self.experts("uncut", 1, "--train.steps=4")
        self.experts("cut", 2, "--train.steps=2", tp=2, etp=2)
        self.experts("cut", 2, "--train.steps=4", ep=2)
        self.assert_close(self.losses("cut"), self.losses("uncut"), CLOSE)
        self.do("checkpoint", "verify", "runs/cut")

    def test_muon_of_experts_in_pieces(self):
        muon = ("--optimizer.kind=muon", "--optimizer.ns_precision=fp32", "--optimizer.lr=1e-3")
        self.experts("matrices", 1, "--train.steps=6", *muon)
        for steps, ranks, degrees in ((2, 4, dict(zero=3, etp=2)), (4, 2, dict(ep=2)), (6, 4, dict(tp=2, ep=2, zero=1))):
            self.experts("pieces", ranks, f"--train.steps={steps}", *muon, **degrees)
        self.assert_close(self.losses("pieces"), self.losses("matrices"), CLOSE)
        traffic = self.do("show", "traffic", "run.toml", "-n", 4, *MODEL, *muon, *axes(zero=3, etp=2))
        self.assertRegex(traffic.out, r"gather_update blocks\.\*\s+send\s+edp_etp")

    def test_the_same_layout_goes_on_with_the_same_bits(self):
        for name, stops in (("once", (4,)), ("stopped", (2, 4))):
            for steps in stops:
                self.experts(name, 4, f"--train.steps={steps}", *BIAS, pp=2, ep=2)
        self.assertEqual(self.tensors("stopped", 4), self.tensors("once", 4))


    def test_the_loads_of_the_last_step_go_on(self):
        last = ("--moe.scope=last_step", "--moe.capacity_factor=1", "--checkpoint.every=2")
        for name, stops in (("last", (6,)), ("interrupted", (2, 6))):
            for steps in stops:
                self.experts(name, 2, f"--train.steps={steps}", *last, ep=2)
        self.assertEqual(self.tensors("interrupted", 6), self.tensors("last", 6))
        self.assertEqual(self.losses("interrupted"), self.losses("last"))
        state = json.loads((self.run_folder("last") / "checkpoints/step-00000006/train_state.json").read_text())
        self.assertEqual([sum(state["last_loads"][block]) for block in ("blocks.0", "blocks.1")], [8 * 32 * 2] * 2)
        self.experts("elsewhere", 1, "--train.steps=2", *last)
        self.experts("elsewhere", 4, "--train.steps=6", *last, tp=2, ep=2)
        self.assert_close(self.losses("elsewhere"), self.losses("last"), CLOSE)


class GenerateTest(ExpertsTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.experts("text", 2, "--train.steps=20", "--optimizer.lr=3e-3", *DROPS, ep=2)

    def generate(self, *arguments):
        return self.do("generate", "runs/text", "--json", *arguments).json()["ids"]

    def test_the_cache_changes_nothing(self):
        options = ["--temperature", 1, "--seed", 7]
        cached = self.generate("--prompt", "Anne had been", "--max-new-tokens", 12, *options)
        for length in range(len(cached) - 12, len(cached), 4):
            ids = ",".join(map(str, cached[:length]))
            self.assertEqual(self.generate("--prompt-ids", ids, "--max-new-tokens", 1, *options), cached[:length + 1])

    def test_ranks_change_nothing(self):
        options = ["--prompt", "Anne had been", "--max-new-tokens", 12]
        alone = self.generate(*options)
        self.assertEqual(self.generate(*options, "-n", 2), alone)
        self.assertEqual(self.generate(*options, "--parallel.ep=4"), alone)  # four ranks; trained by two

    def test_experts_that_choose_tokens_do_not_generate(self):
        self.experts("choice", 2, "--train.steps=1", "--model.router=expert_choice", "--moe.balance=none", ep=2)
        result = self.lockstep("generate", "runs/choice", "--prompt", "Anne", "--max-new-tokens", 2)
        self.assertEqual(result.code, 2, result)
        self.assertIn("expert_choice", result.err)


class RefusalTest(ExpertsTestCase):
    def refused(self, code, words, ranks, *arguments, **degrees):
        """One message with all of `words`, and nothing has been written."""
        for verb in ("train", "verify"):
            result = self.lockstep(verb, "run.toml", "--run.name=refused", "-n", ranks, *arguments, *axes(**degrees))
            self.assertEqual(result.code, 2, result)
            self.assertIn(code, result.err)
            for word in words:
                self.assertIn(word, result.err)
            self.assertFalse(self.run_folder("refused").exists())

    def test_ranks_that_do_not_fit(self):
        self.refused("LS1101", ["model.experts(8) % ep(3) = 2"], 3, *MODEL, "--train.global_batch=6", ep=3)
        self.refused("LS1101", ["2 ranks of a stage % ep(4) = 2"], 2, *MODEL, ep=4)
        self.refused("LS1101", ["model.expert_ffn(96) % etp(5) = 1"], 5, *MODEL, "--model.expert_ffn=96", "--train.global_batch=10", etp=5)

    def test_a_model_without_experts(self):
        self.refused("LS1101", ["ep(2) ranks share out experts, but the model has none"], 2, ep=2)
        self.refused("LS1101", ["moe.balance", "is of experts, but the model has none"], 1, "--moe.balance=bias")

    def test_what_does_not_go_together(self):
        self.refused("LS1101", ["with router expert_choice every expert has the same load"], 1, *MODEL, "--model.router=expert_choice")
        self.refused("LS1101", ["beyond capacity_factor, which is not set"], 1, *MODEL, "--moe.drop=position")
        self.refused("LS1101", ["bias_rate(0.01) beside balance = \"aux\""], 1, *MODEL, "--moe.bias_rate=0.01")
        self.refused("LS1101", ["a parameter server updates all parameters"], 2, *MODEL, "--parallel.data_parallel=parameter_server", ep=2)
        self.refused("LS1101", ["gradients of experts are parts of a sum over tp too"], 2, *MODEL, "--parallel.data_parallel=parameter_server",
                     tp=2)

    def test_sizes(self):
        self.refused("LS1110", ["experts_per_token(9) > experts(8)"], 1, *MODEL, "--model.experts_per_token=9")
        self.refused("LS1110", ["experts(8) % router_groups(3) = 2"], 1, *MODEL, "--model.router_groups=3")
        self.refused("LS1110", ["experts are gated, but family gpt2"], 1, "--model.experts=4")

    def test_values(self):
        self.refused("LS1045", ["none of softmax, softmax_after_topk, sigmoid, expert_choice"], 1, *MODEL, "--model.router=topk")
        self.refused("LS1044", ["moe.capacity_factor"], 1, *MODEL, "--moe.capacity_factor=0")
        self.refused("LS1045", ["none of sequence, last_step"], 1, *MODEL, "--moe.scope=batch")


class OverlapTest(support.LockstepTest):
    def test_two_microbatches_in_turns_leave_the_same_bits(self):
        for schedule, pp in (("interleaved", 2), ("1f1b", 1)):
            for name, more in ((f"{schedule}-whole", ()), (f"{schedule}-parts", ("--parallel.overlap_experts=true", "--trace.steps=2-3"))):
                self.train(name, "--model.preset=mixtral-test", "--train.steps=3", "--train.micro_batch=1", *BIAS, *DROPS, *more,
                           f"--parallel.schedule={schedule}", *axes(pp=pp, ep=2), ranks=4)
            self.assertEqual(self.losses(f"{schedule}-parts"), self.losses(f"{schedule}-whole"))
            self.assertEqual(self.tensors(f"{schedule}-parts", 3), self.tensors(f"{schedule}-whole", 3))
        text = self.do("show", "program", "run.toml", "-n", 2, "--rank", 0, "--full", "--model.preset=mixtral-test", "--train.micro_batch=1",
                       "--parallel.overlap_experts=true", *axes(ep=2)).out
        for action in ("F b0a m1", "DISPATCH_F b0 m1", "B b3b m0", "DISPATCH_B b3 m0"):
            self.assertIn(action, text)


if __name__ == "__main__":
    support.main()
