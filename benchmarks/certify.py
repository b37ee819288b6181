"""Certificates per second, on one thread, beside a plain batched Algorithm 2 in the same run.

``python -m benchmarks.certify``

*decision* is a certificate as ``vt.certify`` finds it: the cascade up to that method, where a row leaves as
soon as its sign is known. *value* is the method's own tightest bound on every row. Algorithm 2 (sorting
all parameters of every row) starts from the same planes.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.record import save, show
from benchmarks.workloads import Workload, binding, learned
from veritracer.bounds import BOUNDS, dual
from veritracer.bounds.crown_ibp import upper_plane
from veritracer.bounds.ibp import trace
from veritracer.proving import CASCADE, ProofBatch, prove

BATCHES = (128, 2000)
ROUNDS = 7


def algorithm_2(w: Workload) -> Tensor:
    """The greedy solution of Equation 3 on every row."""
    objective = upper_plane(w.param_set, trace(w.param_set, w.x_cf), w.sign)
    constraint = upper_plane(w.param_set, trace(w.param_set, w.x), w.sign)
    radius = torch.cat(
        [r.expand(t.numel()) for r, t in zip(w.param_set.radii, w.param_set.center, strict=True)]
    )
    zero = torch.zeros_like(radius)
    return dual.greedy_maximum(
        objective.dense(), objective.center, constraint.dense(), constraint.center, zero, radius
    )


def methods(w: Workload) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    batch = ProofBatch(w.x, w.x_cf, w.sign)

    def decision(upto: int) -> object:
        return prove(w.param_set, batch, CASCADE[:upto], sign_only=True)

    timed: dict[str, Callable[[], object]] = {"algorithm 2": lambda: algorithm_2(w)}
    for index, name in enumerate(CASCADE):
        timed[f"{name}, value"] = lambda name=name: BOUNDS[name](w.param_set, w.x, w.x_cf, w.sign)
        timed[f"{name}, decision"] = lambda upto=index + 1: decision(upto)
    return timed


def head(w: Workload, rows: int) -> Workload:
    return w._replace(x=w.x[:rows], x_cf=w.x_cf[:rows], sign=w.sign[:rows])


def seconds(timed: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median time of each, taken in turns so that a noisy neighbour hits all of them."""
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for round_ in range(ROUNDS + 1):
        for name, run in timed.items():
            start = time.perf_counter()
            run()
            if round_:  # the first one warms up
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


def peak_mib(run: Callable[[], object]) -> float:
    """How much memory a process grows by while it runs, in MiB."""

    def child(pipe: multiprocessing.connection.Connection) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run()
        pipe.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)

    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(send,))
    process.start()
    process.join()
    return float(receive.recv())


def main() -> None:
    torch.set_num_threads(1)
    workloads = [binding(), learned("verified-trained, kappa 0.2", kappa=0.2, verified=True)]
    results: dict[str, object] = {}
    tables: list[str] = []
    with torch.no_grad():
        for whole in workloads:
            bound = BOUNDS["simul-crown"](whole.param_set, whole.x, whole.x_cf, whole.sign)
            binds = float((bound.multiplier > 0).double().mean())
            memory = {name: peak_mib(run) for name, run in methods(whole).items()}
            for rows in BATCHES:
                taken = seconds(methods(head(whole, rows)))
                rates = {name: rows / value for name, value in taken.items()}
                base = rates["algorithm 2"]
                lines = [
                    [n, rates[n], rates[n] / base, memory[n] if rows == max(BATCHES) else ""] for n in rates
                ]
                title = f"{whole.name} (constraint binds on {binds:.0%}), batches of {rows:,}"
                tables.append(show(title, ["method", "certificates/s", "× algorithm 2", "peak MiB"], lines))
                results[f"{whole.name}, {rows}"] = {"binds": binds, "per_second": rates, "peak_mib": memory}
    save("certify", {"results": results}, tables)


if __name__ == "__main__":
    main()
