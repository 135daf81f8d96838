"""A program with an engine of two ranks: prints the follower's process and its answers, then waits to be killed.

python -m parallel.leader FOLDER      with a target and a draft that structured.engines made
"""

from __future__ import annotations

import json
import sys
import time

from parallel.grammars import answers, make

if __name__ == "__main__":
    llm = make(sys.argv[1], tensor_parallel_size=2, device="cpu")
    executor = llm._engine._executor  # type: ignore[union-attr]
    print(json.dumps({"followers": executor.pids, "answers": answers(llm)}), flush=True)
    time.sleep(600)
