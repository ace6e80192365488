"""What scripts/compare_optimizers.py makes of validation losses.

    compare_optimizers_test.py SOURCE_DIR
"""
import importlib.util
import sys
import unittest
from pathlib import Path

SOURCE_DIR = Path(__file__).resolve().parent.parent


def script():
    spec = importlib.util.spec_from_file_location("compare_optimizers", SOURCE_DIR / "scripts/compare_optimizers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CompareOptimizers(unittest.TestCase):
    ADAMW = [(10, 5.0), (20, 4.0), (30, 3.5), (40, 3.25)]

    def test_counts_steps_to_the_same_loss(self):
        lines = script().report(self.ADAMW, [(10, 4.5), (20, 3.5), (30, 3.25), (40, 3.0)])
        self.assertEqual(lines[-1], "Muon is at AdamW's final validation loss after 30 steps: 10 fewer, 25 %")

    def test_says_where_it_is_not_reached(self):
        lines = script().report(self.ADAMW, [(10, 5.0), (40, 3.3)])
        self.assertEqual(lines[-1], "Muon does not reach AdamW's final validation loss")


if __name__ == "__main__":
    sys.argv = sys.argv[:1]
    unittest.main()
