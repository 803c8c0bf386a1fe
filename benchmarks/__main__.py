"""Run every benchmark, one after the other."""

import runpy
import sys

QUESTIONS = (
    "start_up",
    "accuracy",
    "memory",
    "serving_speed",
    "scaling",
    "first_tree",
    "search_speed",
    "yahoo_shape",
    "path_speed",
    "curve_speed",
    "wide_frames",
    "one_query",
    "heavy_tails",
    "score_speed",
    "tradeoff_quality",
    "shopping_rounds",
)

for question in sys.argv[1:] or QUESTIONS:
    sys.argv = [question]
    print(f"\n== {question}", flush=True)
    runpy.run_module(f"benchmarks.{question}", run_name="__main__")
