"""The GEMM limit: the time a step's FLOPs would take at the rates of the matrix products it is made of.

    limit = sum over the linear layers of (forward + input + weight) on the fastest path of each
            + FLOPs of attention (its causal half) / (FLOPs of those products / their time)

Nothing else of a step counts, so no program reaches 100 %.
"""

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from peers.shapes import MEASURED
from programs import run_peer


@dataclass(frozen=True)
class Products:
    """The matrix products of a model at one number of tokens a step."""

    model: str
    tokens: int
    precision: str

    def name(self):
        return f"{self.model} {self.tokens} tokens {self.precision} matrix products"


def products_of(rows):
    """What has to be measured for the rows of several works, each once."""
    found = [Products(row.ours.work.model, row.ours.work.tokens(), row.ours.precision) for row in rows if row.limit]
    return list(dict.fromkeys(found))


class GemmLimits:
    def __init__(self):
        self.reports = defaultdict(list)  # Products -> [report of a round]

    def measure(self, products, setting):
        options = ["--model", products.model, "--tokens", products.tokens, "--precision", products.precision]
        options += ["--repeats", 1] if setting.quick else []
        options += ["--device", setting.device] if setting.device != "cpu" else []
        self.reports[products].append(run_peer("gemm.py", options, setting, 2))

    def shapes(self, products):
        """A row of each product: the path that was fastest and its seconds, medians over the rounds."""
        rows = []
        for of_rounds in zip(*self.reports[products]):
            paths = {name for row in of_rounds for name in row["seconds"]}
            seconds = {
                name: median(row["seconds"][name] for row in of_rounds if name in row["seconds"]) for name in paths
            }
            path = min(seconds, key=seconds.get)
            row = {key: of_rounds[0][key] for key in ("name", "part", "count", "m", "n", "k")}
            row |= {"path": path, "seconds": seconds[path], "flops": 2 * row["m"] * row["n"] * row["k"]}
            row["paths"] = {name: row["flops"] / taken for name, taken in sorted(seconds.items())}  # FLOP/s
            rows.append(row)
        return rows

    def rate(self, products):
        """FLOP/s of the products of a step together."""
        rows = self.shapes(products)
        return sum(row["flops"] * row["count"] for row in rows) / sum(row["seconds"] * row["count"] for row in rows)

    def seconds(self, work, precision):
        """The limit of a step; None where its products were not measured."""
        products = Products(work.model, work.tokens(), precision)
        if products not in self.reports:
            return None
        attention = MEASURED[work.model].attention_flops_per_token(work.seq_len) * work.tokens()
        shapes = self.shapes(products)
        return sum(row["seconds"] * row["count"] for row in shapes) + attention / self.rate(products)
