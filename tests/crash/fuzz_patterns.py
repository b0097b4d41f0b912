"""Random patterns on random texts: is what pattern_cost says an upper bound of what RE2 takes?

    python -m tests.crash.fuzz_patterns [--seconds 60] [--seed 1]

Each pattern is evaluated by the real library, on random texts of the characters that it speaks of (repeated
text stays in few states and shows nothing). The best processor time of three is compared with the estimate:
a byte of it may take NANOSECONDS_MAX. What takes longer is printed, and the run ends with 1.
"""

from __future__ import annotations

import argparse
import random
import time

from cel_expr_python import cel

from proxy_consumer.push.actions.pattern_cost import pattern_cost

NANOSECONDS_MAX = 16.0  # for a byte of the estimate: some 16 ms for CHEAP_WORK_MAX, on a busy machine
OVERHEAD_S = 0.0005
ATOMS = (
    "a",
    "b",
    "c",
    "ab",
    ".",
    "[ab]",
    "[a-z]",
    "[^a]",
    "[0-9a-f]",
    "\\d",
    "\\w",
    "\\S",
    "é",
    "订",
    "[^é]",
    "[a-cx-z]",
)
COSTLY_ATOMS = ("\\pL", "\\p{Greek}", "[а-я]", "\\PN", "\\b")
REPEATS = ("*", "+", "?", "{2}", "{0,3}", "{1,}", "{5,40}", "{30}", "{0,200}", "{1,999}", "*?", "{2,9}?")
TEXTS = ("ab", "abc", "abcxyz012 é", "abé订", "aé", "abcdefghij klmn,.-0123456789@", "éàü订单я")


def random_pattern(rnd: random.Random, depth: int = 3) -> str:
    """Return a pattern of up to `depth` groups inside each other."""
    atoms = [random_atom(rnd, depth) for _ in range(rnd.randint(1, 4))]
    pattern = "|".join(atoms) if rnd.random() < 0.2 else "".join(atoms)
    if depth == 3:
        flags = rnd.choice(("", "", "", "(?i)", "(?s)"))
        pattern = flags + rnd.choice(("", "", "^")) + pattern + rnd.choice(("", "$", "zq"))
    return pattern


def random_atom(rnd: random.Random, depth: int) -> str:
    if depth and rnd.random() < 0.3:
        atom = f"({random_pattern(rnd, depth - 1)})"
    else:
        atom = rnd.choice(COSTLY_ATOMS if rnd.random() < 0.05 else ATOMS)
    return atom + (rnd.choice(REPEATS) if rnd.random() < 0.5 else "")


def random_text(rnd: random.Random) -> str:
    signs = rnd.choice(TEXTS)
    return "".join(rnd.choices(signs, k=rnd.choice((200, 3_000, 30_000, 200_000))))


def measure(pattern: str, text: str) -> float | None:
    """Return the processor time of the best of three evaluations; None: the library refuses the pattern."""
    environment = cel.NewEnv(variables={"text": cel.Type.STRING, "pattern": cel.Type.STRING})
    expression = environment.compile("text.matches(pattern)")
    best = None
    for _ in range(3):
        begin = time.process_time()
        try:
            value = expression.eval(data={"text": text, "pattern": pattern})
        except RuntimeError:
            return None
        if value.type().name() == "ERROR":
            return None
        spent = time.process_time() - begin
        best = spent if best is None else min(best, spent)
        if best < OVERHEAD_S:
            return best
    return best


def fuzz(seconds: float, seed: int, nanoseconds_max: float = NANOSECONDS_MAX) -> list[str]:
    """Return what took longer than its estimate allows."""
    rnd = random.Random(seed)
    findings: list[str] = []
    tried = refused = unknown = proven = 0
    highest = 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pattern, text = random_pattern(rnd), random_text(rnd)
        cost = pattern_cost(pattern)
        if cost is None:
            unknown += 1
            continue
        if cost.search_cost(len(text.encode())) > 64 << 20:
            text = text[:3_000]
        spent = measure(pattern, text)
        if spent is None:
            refused += 1
            continue
        tried += 1
        proven += cost.steps is not None
        work = cost.search_cost(len(text.encode()))
        rate = (spent - OVERHEAD_S) * 1e9 / work
        highest = max(highest, rate)
        if rate > nanoseconds_max:
            report = (
                f"{pattern!r}: {spent * 1e3:.1f} ms for {work} ({rate:.1f} ns each), {cost}, "
                f"a text of {len(text)}: {text[:20]!r}"
            )
            findings.append(report)
            print(report, flush=True)
    print(
        f"{tried} patterns, {proven} of few states; refused {refused}, not understood {unknown}; "
        f"highest {highest:.2f} ns",
        flush=True,
    )
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    raise SystemExit(1 if fuzz(options.seconds, options.seed) else 0)


if __name__ == "__main__":
    main()
