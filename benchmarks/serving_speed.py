"""How fast is one model served, by us and by those who can read it in LightGBM's format?"""

from __future__ import annotations

import argparse
import gc
import itertools
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lightgbm
import lleaves
import llvmlite.binding as llvm
import numpy as np
import onnxmltools
import onnxruntime
import tl2cgen
import treelite
from onnxmltools.convert.common.data_types import FloatTensorType

from benchmarks._common import COLUMNS, machine, regression_data
from greedymiser import MiserRegressor, as_predictor
from greedymiser.files.lightgbm_format import to_lightgbm

Answers = Callable[[np.ndarray], np.ndarray]
"""What a reader of the model does with rows of X."""


def interleaved(
    functions: dict[str, Callable[[], object]], repeats: int, together: int = 1
) -> dict[str, np.ndarray]:
    """Seconds of each function, called in turn, ``together`` times each.

    The order changes from turn to turn, and the first call of a turn does not count where others
    follow: it would measure what the neighbour has left in the caches (two readers that share
    their arrays would help each other).
    """
    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    gc.collect()
    gc.disable()
    for _ in range(-(-repeats // together)):
        for name in rng.permutation(list(functions)).tolist():
            times = [clocked(functions[name]) for _ in range(together + (together > 1))]
            seconds[name] += times[-together:]
    gc.enable()
    return {name: np.array(times) for name, times in seconds.items()}


def clocked(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


# -- readers ----------------------------------------------------------------------------------


def ours(model: MiserRegressor, threads: int) -> dict[str, Answers]:
    model.set_params(n_jobs=threads)
    return {"MiserRegressor": model.predict, "Predictor": as_predictor(model).predict}


def with_lightgbm(text: str, threads: int) -> Answers:
    booster = lightgbm.Booster(model_str=text)
    return partial(booster.predict, num_threads=threads)


def with_onnx(model: MiserRegressor, threads: int) -> Answers:
    """ONNX Runtime, which computes in float32: X must be float32, or it is cast."""
    booster = lightgbm.Booster(model_str=to_lightgbm(model, dtype="float32"))
    kind = [("X", FloatTensorType([None, model.n_features_in_]))]
    converted = onnxmltools.convert_lightgbm(booster, initial_types=kind)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(converted.SerializeToString(), options)
    return lambda X: session.run(None, {"X": X.astype(np.float32, copy=False)})[0][:, 0]


def with_treelite(path: Path, threads: int) -> Answers:
    loaded = treelite.frontend.load_lightgbm_model(path)
    return lambda X: treelite.gtil.predict(loaded, X, nthread=threads).ravel()


def with_tl2cgen(path: Path, threads: int) -> Answers:
    library = path.with_suffix(f".{threads}.so")
    tl2cgen.export_lib(
        treelite.frontend.load_lightgbm_model(path), toolchain="gcc", libpath=library
    )
    predictor = tl2cgen.Predictor(library, nthread=threads)

    def predict(X: np.ndarray) -> np.ndarray:
        rows = tl2cgen.DMatrix(X.astype(np.float64, copy=False), dtype="float64")
        return predictor.predict(rows).ravel()

    return predict


def with_lleaves(path: Path, threads: int, one_row: bool = False) -> Answers:
    """Machine code of the trees; blocks of trees help many rows, and not a single one."""
    open_old_doors()
    model = lleaves.Model(path)
    model.compile(fblocksize=model.num_trees() if one_row else 34)
    return partial(model.predict, n_jobs=threads)


def open_old_doors() -> None:
    """lleaves 1.3 opens doors that llvmlite has closed; lead it to the new ones."""
    if hasattr(llvm, "PassManagerBuilder"):
        return
    llvm.initialize = lambda: None  # LLVM does it by itself

    class Builder:
        def populate(self, passes: object) -> None: ...

    class Passes:
        def run(self, module: llvm.ModuleRef) -> None:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            target = llvm.Target.from_default_triple().create_target_machine()
            tuning = llvm.create_pipeline_tuning_options(speed_level=3)
            builder = llvm.create_pass_builder(target, tuning)
            builder.getModulePassManager().run(module, builder)

    llvm.PassManagerBuilder, llvm.ModulePassManager = Builder, Passes


# -- questions --------------------------------------------------------------------------------


def check(readers: dict[str, Answers], X: np.ndarray, expected: np.ndarray) -> None:
    """Fast and wrong does not count."""
    for name, predict in readers.items():
        off = np.abs(predict(X) - expected).max()
        allowed = 1e-4 if "ONNX" in name else 1e-9
        if not off < allowed:
            raise SystemExit(f"{name} is off by {off:g} from our predictions")


def measure_bulk(readers: dict[str, Answers], X: np.ndarray, repeats: int) -> None:
    seconds = interleaved({name: partial(call, X) for name, call in readers.items()}, repeats)
    served = seconds["Predictor"].min()
    for name, times in seconds.items():
        rate = len(X) / times.min() / 1e6
        print(
            f"  {name:24s} {1e3 * times.min():8.1f} ms {rate:7.3f} million rows/s "
            f"{times.min() / served:7.2f} x Predictor"
        )


def measure_one_row(readers: dict[str, Answers], X: np.ndarray, repeats: int) -> None:
    """Rows differ from call to call, or the processor would learn the branches of one by heart."""
    rows = [X[i : i + 1].copy() for i in range(min(len(X), 1000))]

    def next_row(call: Answers) -> Callable[[], np.ndarray]:
        turns = itertools.cycle(rows)
        return lambda: call(next(turns))

    calls = {name: next_row(call) for name, call in readers.items()}
    seconds = interleaved(calls, repeats, together=50)
    fastest = min(np.median(times) for times in seconds.values())
    for name, times in seconds.items():
        p50, p99 = 1e6 * np.percentile(times, [50, 99])
        print(
            f"  {name:24s} p50 {p50:8.1f} us  p99 {p99:8.1f} us "
            f"{1e-6 * p50 / fastest:7.2f} x the fastest"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--trees", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--single-repeats", type=int, default=3000)
    args = parser.parse_args()
    print(machine())
    X, y = regression_data(args.rows, args.columns)
    learn = slice(0, 20_000)
    model = MiserRegressor(max_iter=args.trees, early_stopping=False).fit(X[learn], y[learn])
    expected = model.predict(X)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.txt"
        text = to_lightgbm(model)
        path.write_text(text, encoding="utf-8")
        for threads in (1, 2):
            readers = {
                **ours(model, threads),
                "LightGBM": with_lightgbm(text, threads),
                "ONNX Runtime": with_onnx(model, threads),
                "treelite GTIL": with_treelite(path, threads),
                "tl2cgen": with_tl2cgen(path, threads),
                "lleaves": with_lleaves(path, threads),
            }
            for dtype in (np.float64, np.float32):
                data = X.astype(dtype)
                check(readers, data, expected)
                print(
                    f"{len(X)} rows of {np.dtype(dtype)}, {args.trees} trees, {threads} thread(s):"
                )
                measure_bulk(readers, data, args.repeats)
            if threads == 1:
                readers["lleaves"] = with_lleaves(path, threads, one_row=True)
                for dtype in (np.float64, np.float32):
                    data = X[:1000].astype(dtype)
                    check(readers, data, expected[:1000])
                    print(f"one row of {np.dtype(dtype)}, {args.trees} trees:")
                    measure_one_row(readers, data, args.single_repeats)


if __name__ == "__main__":
    main()
