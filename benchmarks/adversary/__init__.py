"""A hostile review, kept as scripts: what somebody tries who wants to break what is said of certificates.

``python -m benchmarks.adversary [part ...] [--quick] [--share 0.05] [--workers N]``, or ``make adversary``.

| part | what is tried |
|---|---|
| attack | models inside of the set that break a certified row, at kappa and at the certified radius |
| corners | every vertex of the set of a tiny network, in exact rational arithmetic |
| cascade | what ``certify`` says was proved, against the plain bounds |
| grids | every legal row of small schemas, against the answer of ``explain`` |
| forgeries | ledgers changed behind their back, on SQLite and on PostgreSQL |

Every part is a list of jobs, each with a seed of its own. What a job found is written to ``out/adversary``
when it ends, so that a run can be stopped and goes on where it was, as long as the code is the same. Only a
full run is written to ``benchmarks/results``. The parts use the public surface, and their own arithmetic
where they judge.
"""
