"""`paceline verify`: is what this engine samples with speculation really the target's own law?

    verify(Options(model=..., draft=...)) -> Report        read runner.py first, then law_check.py

Three questions, asked through the public LLM API alone (nothing here imports the engine's inside):
(a) law: many sampled answers, every place tested against the exact law, which an independent oracle (oracle.py) and an
    independent definition (law.py) give;
(b) greedy parity: the same text with and without speculation, up to near-ties of the dtype;
(c) determinism: a seed gives its text in whatever company.
"""
