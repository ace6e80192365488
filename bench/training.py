"""Rounds of training cases, and what they say: medians, shares of the GEMM limit, ratios."""

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median

from cases import Case, cases_of
from gemm import GemmLimits, Products
from programs import BenchError, busiest_rank_bytes, lockstep_parameters, predicted_peak, run_case, spread, torch_memory

SLOWER = 1.1  # a peer this many times slower than the fastest of its row is measured in the first round alone


@dataclass(frozen=True)
class Rounds:
    most: int
    end: float  # no round begins that would end later, on time.monotonic()'s clock


class Measurements:
    """Results by case and round."""

    def __init__(self):
        self.rounds = defaultdict(dict)  # case -> {round: Result}
        self.limits = GemmLimits()
        self.memory = {}  # case -> largest bytes of a rank
        self.wall = {}  # case or Products -> seconds that measuring it took last
        self.failed = {}  # case or Products -> why; it is not measured again

    def add(self, case, number, result):
        self.rounds[case][number] = result

    def all(self, case, name):
        return [value for result in self.rounds[case].values() for value in getattr(result, name)]

    def step(self, case):
        return median(self.all(case, "step_seconds"))

    def each_round(self, case, name):
        return [getattr(result, name) for result in self.rounds[case].values()]

    def fastest(self, cases):
        return min(cases, key=self.step, default=None)

    def ratios(self, ours, other):
        """Of each round that has both: how many times as fast ours is, median step against median step."""
        a, b = self.rounds[ours], self.rounds[other]
        return [median(b[number].step_seconds) / median(a[number].step_seconds) for number in a if number in b]


def still_measured(rows, measurements):
    """The rows without the peers that are far behind the fastest."""
    kept = []
    for row in rows:
        best = min((measurements.step(peer) for peer in row.peers), default=0)
        kept.append(replace(row, peers=tuple(peer for peer in row.peers if measurements.step(peer) <= SLOWER * best)))
    return kept


def whole(rows, measurements):
    """The rows whose own case and bases did not fail, without the peers that did."""
    failed = measurements.failed
    kept = [row for row in rows if not any(case in failed for case in (row.ours, *row.bases, row.peer_base))]
    return [replace(row, peers=tuple(peer for peer in row.peers if peer not in failed)) for row in kept]


def measure_task(task, number, measurements, setting):
    """One case or the products of one model; what it found in words."""
    begin = time.monotonic()
    if isinstance(task, Products):
        measurements.limits.measure(task, setting)
        text = f"{measurements.limits.rate(task) / 1e9:8.0f} GFLOP/s"
    else:
        measurements.add(task, number, run_case(task, setting))
        text = f"{median(measurements.rounds[task][number].step_seconds) * 1000:8.0f} ms"
    measurements.wall[task] = time.monotonic() - begin
    return f"{text}  ({measurements.wall[task]:.0f} s)"


def measure(rows, products, rounds, setting, after_round):
    """Rounds of all cases, every second one backwards, so that a slow minute of the machine meets both sides. After each
    `after_round(rows, measurements)`, with the rows of which everything was measured. A case that fails sits out the rest."""
    measurements = Measurements()
    shown = rows
    for number in range(1, rounds.most + 1):
        tasks = [task for task in (*products, *cases_of(rows)) if task not in measurements.failed]
        if number > 1 and time.monotonic() + sum(measurements.wall[task] for task in tasks) > rounds.end:
            print(f"no round {number}: it would end after --seconds")
            break
        for task in tasks if number % 2 else reversed(tasks):
            try:
                text = measure_task(task, number, measurements, setting)
            except BenchError as error:
                measurements.failed[task] = str(error)
                text = f"failed: {error}"
            print(f"round {number}  {task.name():<56} {text}", flush=True)
        rows, shown = whole(rows, measurements), whole(shown, measurements)
        if number == 1:
            check_twins(measurements, setting)
            measure_memory(rows, measurements, setting)
        rows = still_measured(rows, measurements)
        after_round(shown, measurements)
    return measurements


def measure_memory(rows, measurements, setting):
    """Of the cases that share out states, and of the single rank beside them: ours as its runs say, PyTorch's in runs of
    their own, one each."""
    sharing = [row for row in rows if row.ours.zero]
    for case in cases_of(sharing):
        if case.program == "lockstep":
            measurements.memory[case] = max(measurements.each_round(case, "peak_bytes"))
        elif case.zero:
            measurements.memory[case] = torch_memory(case, setting)


def check_twins(measurements, setting):
    """The twins have the parameters of the models they stand for."""
    for case, results in measurements.rounds.items():
        if case.program != "pytorch":
            continue
        ours = lockstep_parameters(Case("lockstep", "ring", case.work, case.dtype()), setting)
        theirs = results[1].report["parameters"]
        if ours != theirs:
            raise BenchError(f"{case.name()}: {theirs} parameters, Lockstep's model has {ours}")


def case_row(case, measurements):
    steps, waits = measurements.all(case, "step_seconds"), measurements.each_round(case, "data_wait")
    faults = measurements.all(case, "step_faults")
    limit = measurements.limits.seconds(case.work, case.dtype())
    return {
        "work": case.work.name(),
        "precision": case.dtype(),
        "layout": case.layout(),
        "tp": case.tp,
        "pp": case.pp,
        "zero": case.zero,
        "ep": case.ep,
        "cp": case.cp,
        "program": case.kind(),
        "median_ms": median(steps) * 1000,
        "fastest_ms": min(steps) * 1000,
        "tokens_per_s": case.work.tokens() / median(steps),
        "limit_ms": limit * 1000 if limit else None,
        "share_of_limit": limit / median(steps) if limit else None,
        "exposed": exposed(case, measurements),
        "startup_s": median(measurements.each_round(case, "startup")),
        "faults_per_step": median(faults) if faults else None,
        "data_wait": median(waits) if case.program == "lockstep" else None,
        "rounds": len(measurements.rounds[case]),
        "wall_s": measurements.wall[case],
        "step_ms": [seconds * 1000 for seconds in steps],
    }


def exposed(case, measurements):
    """{what rank 0 waited for: the median of its shares of a step}, largest first."""
    shares = defaultdict(list)
    for of_round in measurements.each_round(case, "exposed"):
        for what, found in of_round.items():
            shares[what] += found
    return dict(sorted(((what, median(found)) for what, found in shares.items()), key=lambda item: -item[1]))


def over_own_work(case, result, bubble):
    """A step beside the work of its own actions, which the cores do at one time: what the schedule and the engine add. Of the traced
    step; where the update goes ahead of the norm, of the timed ones, since a traced step waits at its end."""
    step = median(result.step_seconds) if case.ahead() else result.pipeline["measured"]["step"]
    busy = result.pipeline["typical" if case.ahead() else "measured"]["busy"]
    return step / (sum(busy) / len(busy) / (1 - bubble))


def against_theory(case, one_thread, measurements):
    """A pipeline beside what its schedule allows, and beside its simulation; medians over the rounds. Ideal: the work of one rank
    with one thread, dealt out to the stages, and the bubble of the schedule's closed form."""
    rounds, alone = measurements.rounds[case], measurements.rounds[one_thread]
    bubble = next(iter(rounds.values())).pipeline.get("bubble_formula")
    both = [(rounds[number], alone[number]) for number in rounds if number in alone]
    numbers = [result.pipeline for result in rounds.values()]
    found = {"schedule": case.schedule, "pp": case.pp, "layout": case.layout(), "work": case.work.name(), "bubble": bubble}
    found["measured_ms"] = measurements.step(case) * 1000
    if bubble is not None:
        ideal = [median(one.step_seconds) / case.pp / (1 - bubble) for _, one in both]
        found["ideal_ms"] = median(ideal) * 1000
        found["over_ideal"] = spread([median(ours.step_seconds) / best for (ours, _), best in zip(both, ideal)])
        found["over_work"] = spread([over_own_work(case, result, bubble) for result in rounds.values()])
    step = "period" if case.ahead() else "step"
    found["simulated_ms"] = median(number["typical"][step] for number in numbers) * 1000
    found["simulated_share"] = spread([result.pipeline["typical"][step] / median(result.step_seconds) for result in rounds.values()])
    found["replayed_share"] = spread([number["simulated"]["step"] / number["measured"]["step"] for number in numbers])
    found["bubble_simulated"] = median(number["typical"]["bubble"] for number in numbers)
    found["overhead_us"] = median(number["measured"]["overhead"]["worst_rank"] for number in numbers) * 1e6
    found["overhead_median_us"] = median(number["measured"]["overhead"]["median"] for number in numbers) * 1e6
    return found


def comparison(row, measurements, setting):
    """Ours beside the fastest peer and beside our own bases."""
    ours, best = row.ours, measurements.fastest(row.peers)
    found = {"work": ours.work.name(), "precision": ours.precision, "layout": ours.layout(), "program": ours.kind()}
    found |= {"pp": ours.pp, "schedule": ours.schedule}
    found |= {"ep": ours.ep, "tp": ours.tp, "zero": ours.zero, "recompute": ours.recompute, "mark": row.mark}
    found |= {"cp": ours.cp, "context": ours.context, "model": ours.work.model, "tokens": ours.work.seq_len}
    if ours.zero:
        memory = measurements.memory
        found |= {"peak_bytes": memory[ours], "predicted_bytes": predicted_peak(ours, setting)}
        found |= {"one_rank_bytes": memory[row.bases[0]], "peer_bytes": memory[best] if best else None}
    found["median_ms"] = measurements.step(ours) * 1000
    limit = measurements.limits.seconds(ours.work, ours.precision)
    found["share_of_limit"] = limit / measurements.step(ours) if limit else None
    if limit:
        found["limit_share"] = spread([limit / median(steps) for steps in measurements.each_round(ours, "step_seconds")])
    if best:
        found |= {"peer": best.kind(), "peer_ms": measurements.step(best) * 1000}
        found["peer_share_of_limit"] = limit / measurements.step(best) if limit else None
        found["times_as_fast"] = spread(measurements.ratios(ours, best))
    if best and row.peer_base:
        found["peer_share"] = spread(measurements.ratios(best, row.peer_base))
    if row.bases:
        found["share_of"] = {
            f"{base.kind()} {base.layout()}": spread(measurements.ratios(ours, base)) for base in row.bases
        }
    if ours.ranks > 1:
        found["busiest_rank_bytes"] = busiest_rank_bytes(ours, setting)
    return found
