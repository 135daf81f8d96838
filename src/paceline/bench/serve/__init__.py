"""`paceline bench serve`: what users of a running server get, over HTTP alone.

    options -> arms, prompts, loads -> session (interleaved cases) -> requests.jsonl -> summary -> bench.json

Read session.py for the order of things, latency.py for what each figure means. Nothing is derived while requests
run: a record keeps when how many tokens came, and every figure is computed from records afterwards.
"""
