"""A program that behaves like `vllm serve` as far as runtime vllm looks: no model, standard library only.

    python fake_vllm.py --model M --host H --port P [--load-seconds S] [--die-while-loading]

It asks for the key in VLLM_API_KEY under /v1. A prompt is a list of token ids; the answer is the prompt backwards,
one token an event. `max_tokens` 0 makes it exit, `seed` 13 makes it stream until the client goes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COUNTS: dict[str, float] = {"running": 0, "steps": 0, "generated": 0, "aborted": 0}
PER_POSITION = (5, 3)

METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
# HELP vllm:iteration_tokens_total Histogram of number of tokens per engine_step.
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{{engine="0",le="+Inf",model_name="m"}} {steps}
vllm:iteration_tokens_total_count{{engine="0",model_name="m"}} {steps}
vllm:iteration_tokens_total_sum{{engine="0",model_name="m"}} {steps}
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {generated}
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="abort",model_name="m"}} {aborted}
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} 6.0
# HELP vllm:spec_decode_num_accepted_tokens_total Number of accepted tokens.
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} 8.0
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} 3.0
# HELP http_requests_total Total number of requests.
# TYPE http_requests_total counter
http_requests_total{{handler="/v1/completions"}} 1.0
"""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(200, b"")
        elif self.path == "/metrics":
            self._send(200, METRICS.format(**COUNTS).encode(), "text/plain")
        elif self.path.startswith("/v1/"):
            self._send_json(200 if self._knows_the_key() else 401, {"path": self.path, "headers": dict(self.headers)})
        else:
            self._send_json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        if not self._knows_the_key():
            return self._send_json(401, {"error": "Unauthorized"})
        body = json.loads(content)
        if body.get("max_tokens") == 0:
            print("the last words of vLLM", file=sys.stderr, flush=True)
            os._exit(3)
        if body.get("temperature") == 99:
            error = {
                "message": "temperature is too warm",
                "type": "BadRequestError",
                "param": "temperature",
                "code": 400,
            }
            return self._send_json(400, {"error": error})
        if not body.get("stream"):
            return self._send_json(200, {"echo": body, "size": len(content)})
        self._stream(body)

    def _knows_the_key(self) -> bool:
        return self.headers.get("authorization") == f"Bearer {os.environ['VLLM_API_KEY']}"

    def _send(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _send_json(self, status: int, body: Any) -> None:
        self._send(status, json.dumps(body).encode())

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        COUNTS["running"] += 1
        try:
            if body.get("seed") == 13:
                while True:
                    self._event(_choice(0, [7], None))
                    time.sleep(0.02)
            self._answers(body)
        except (BrokenPipeError, ConnectionResetError):
            COUNTS["aborted"] += 1
        finally:
            COUNTS["running"] -= 1

    def _answers(self, body: dict[str, Any]) -> None:
        tokens = body["prompt"][::-1]
        for index in range(body["n"]):
            for place, token in enumerate(tokens):
                COUNTS["steps"] += 1
                COUNTS["generated"] += 1
                self._event(_choice(index, [token], "stop" if place == len(tokens) - 1 else None))
        metrics = {"num_spec_steps": 4, "num_draft_tokens": 8, "num_accepted_draft_tokens": 5}
        self._event(
            {
                "choices": [],
                "usage": {"prompt_tokens": len(tokens), "prompt_tokens_details": {"cached_tokens": 2}},
                "metrics": {"speculative_decoding": metrics | {"acceptance_histogram": [1, 1, 2]}},
            }
        )
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, body: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()


def _choice(index: int, token_ids: list[int], finish_reason: str | None) -> dict[str, Any]:
    logprobs = {
        "tokens": [f"token_id:{token}" for token in token_ids],
        "token_logprobs": [-0.5] * len(token_ids),
        "top_logprobs": [{"token_id:1": -0.1, f"token_id:{token}": -0.5} for token in token_ids],
    }
    choice = {"index": index, "text": f" t{token_ids[0]}", "token_ids": token_ids, "finish_reason": finish_reason}
    return {"choices": [choice | {"logprobs": logprobs, "stop_reason": None}]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--load-seconds", type=float, default=0.0)
    parser.add_argument("--die-while-loading", action="store_true")
    parser.add_argument("--deaf", action="store_true")
    arguments, _ = parser.parse_known_args()
    if arguments.deaf:
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(arguments.load_seconds)
    if arguments.die_while_loading:
        sys.exit("ValueError: no such model")
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
