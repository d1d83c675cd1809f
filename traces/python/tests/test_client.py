"""The client against a small server of this test's own, on 127.0.0.1."""

import contextlib
import io
import json
import socket
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

from lockstep_trace import client
from lockstep_trace.asking import Asker, Server

COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "text": " 4",
            "finish_reason": "stop",
            "logprobs": {
                "tokens": ["token_id:220"],
                "token_logprobs": [-0.0123456789],
                "top_logprobs": [{"token_id:220": -0.0123456789, "token_id:7": -4.5}],
                "text_offset": [0],
            },
        }
    ],
}


class Handler(BaseHTTPRequestHandler):
    """Serves `server.pages` on GET and the next of `server.script` on POST; the last one again and again."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        body = self.server.pages.get(self.path)
        self._send(404, b"{}") if body is None else self._send(200, json.dumps(body).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, body, self.headers.get("Authorization")))
        script = self.server.script
        step = script.pop(0) if len(script) > 1 else script[0]
        if step == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices"')
        elif step == "reset":
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._send(*step)

    def _send(self, status, data, headers=()):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Set-Cookie", "session=private")
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


class ClientTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = Path(self.folder.name) / "responses.jsonl"
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.pages = {
            "/v1/models": {"object": "list", "data": [{"id": "tiny", "owned_by": "vllm"}]},
            "/version": {"version": "0.33.0", "args": {"admin_api_key": "hidden"}},
        }
        self.server.script = [(200, json.dumps(COMPLETION, indent=2).encode())]
        self.server.seen = []
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def run_client(self, prompts, *more):
        path = Path(self.folder.name) / "prompts.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in prompts))
        args = ["--base-url", self.url + "/v1/", "--model", "tiny", "--prompts", str(path), "--out", str(self.out), "--wait", "0"]
        self.said = io.StringIO()
        with contextlib.redirect_stderr(self.said):
            return client.main([*args, *more])

    def log(self):
        return [json.loads(line) for line in Path(f"{self.out}.requests.jsonl").read_text().splitlines()]

    def test_a_response_is_kept_as_it_came_with_its_request_beside_it(self):
        prompts = [{"sample_id": "a", "prompt_ids": [1, 2]}, {"sample_id": "b", "prompt": "2 + 2 =", "seed": 9}]
        self.assertEqual(self.run_client(prompts, "--seed", "3", "--prompt-logprobs", "0"), 0)
        lines = self.out.read_text().splitlines()
        self.assertEqual([json.loads(line) for line in lines], [COMPLETION, COMPLETION])
        self.assertIn("-0.0123456789", lines[0])
        (path, first, _), (_, second, _) = self.server.seen
        self.assertEqual(path, "/v1/completions")
        expected = {
            "model": "tiny",
            "prompt": [1, 2],
            "max_tokens": 256,
            "temperature": 0.0,
            "stream": False,
            "seed": 3,
            "logprobs": 5,
            "add_special_tokens": False,
            "return_tokens_as_token_ids": True,
            "prompt_logprobs": 0,
        }
        self.assertEqual(first, expected)
        self.assertEqual((second["prompt"], second["seed"], "add_special_tokens" in second), ("2 + 2 =", 9, False))
        log = self.log()
        self.assertEqual([(row["sample_id"], row["request"], row["status"], row["error"]) for row in log], [
            ("a", expected, 200, None),
            ("b", second, 200, None),
        ])
        data = self.out.read_bytes()
        for row, line in zip(log, lines):
            at = row["response"]
            self.assertEqual(data[at["offset"] : at["offset"] + at["bytes"]].decode(), line + "\n")
        self.assertNotIn("private", Path(f"{self.out}.requests.jsonl").read_text())
        said = json.loads(Path(f"{self.out}.server.json").read_text())[0]
        self.assertEqual((said["kind"], said["pages"]["/version"]["body"]["version"]), ("vllm", "0.33.0"))
        self.assertEqual((said["pages"]["/version"]["body"]["args"], said["pages"]["/props"]["status"]), ({}, 404))

    def test_each_api_asks_for_log_probabilities_in_its_own_way(self):
        cases = [
            (["--api", "chat", "--server", "openai"], {"prompt": "x"}, "/v1/chat/completions", {"logprobs": True, "top_logprobs": 5}),
            (["--api", "sglang", "--prompt-logprobs", "1"], {"prompt_ids": [4]}, "/generate", {"return_logprob": True, "logprob_start_len": 0}),
            (["--api", "llama", "--server", "llama"], {"prompt_ids": [4]}, "/completion", {"n_probs": 5, "cache_prompt": False}),
            (["--server", "openai", "--extra", '{"echo": true}'], {"prompt": "x"}, "/v1/completions", {"echo": True, "logprobs": 5}),
        ]
        for number, (more, row, path, fields) in enumerate(cases):
            self.out = Path(self.folder.name) / f"{number}.jsonl"
            self.assertEqual(self.run_client([row], *more), 0, self.said.getvalue())
            seen, body, _ = self.server.seen[-1]
            self.assertEqual(seen, path)
            self.assertEqual({key: body[key] for key in fields}, fields)
            self.assertNotIn("return_tokens_as_token_ids", body)

    def test_a_busy_server_a_cut_answer_and_wrong_json_are_asked_again(self):
        good = (200, json.dumps(COMPLETION).encode())
        for bad in ("cut", "reset", (200, b"<html>"), (200, b"[1]"), (503, b"busy"), (429, b"", [("Retry-After", "0")])):
            self.out = Path(self.folder.name) / f"{bad}.jsonl".replace("/", "")
            self.server.seen.clear()
            self.server.script = [bad, bad, good]
            self.assertEqual(self.run_client([{"prompt": "x"}]), 0, (bad, self.said.getvalue()))
            self.assertEqual((len(self.server.seen), self.log()[0]["attempts"]), (3, 3), bad)
            self.assertEqual(json.loads(self.out.read_text()), COMPLETION)

    def test_a_failure_is_recorded_after_bounded_attempts_and_the_rest_is_asked(self):
        good = (200, json.dumps(COMPLETION).encode())
        for bad, part, attempts in (
            ("cut", "IncompleteRead", 3),
            ((200, b"<html>"), "not the JSON", 3),
            ((500, b"out of memory"), "HTTP 500: out of memory", 3),
            ((400, b"no such model"), "HTTP 400: no such model", 1),
        ):
            self.out = Path(self.folder.name) / f"{part}.jsonl".replace(" ", "").replace(":", "")
            self.server.script = [bad] * attempts + [good]
            prompts = [{"prompt": "x"}, {"prompt": "y"}]
            self.assertEqual(self.run_client(prompts, "--retries", "2"), 1)
            first, second = self.log()
            self.assertIn(part, first["error"])
            self.assertEqual((first["attempts"], first["response"], second["response"]["line"]), (attempts, None, 1))
            self.assertIn("1 of 2 prompts have no response", self.said.getvalue())
            self.assertEqual(len(self.out.read_text().splitlines()), 1)
            # Again: only what failed is asked.
            self.server.seen.clear()
            self.assertEqual(self.run_client(prompts, "--retries", "2"), 0)
            self.assertEqual([body["prompt"] for _, body, _ in self.server.seen], ["x"])
            self.assertEqual([row["sample_id"] for row in self.log()], ["row_0", "row_1", "row_0"])

    def test_a_recording_that_was_stopped_goes_on_without_repeating(self):
        prompts = [{"prompt": "x"}, {"prompt": "y"}]
        self.assertEqual(self.run_client(prompts[:1]), 0)
        whole = self.out.read_bytes()
        log = Path(f"{self.out}.requests.jsonl")
        known = log.read_bytes()
        # Stopped while the second was written: half a response, half a line of the log.
        self.out.write_bytes(whole + b'{"id": "cm')
        log.write_bytes(known + b'{"sample_id":"row_1","resp')
        self.server.seen.clear()
        self.assertEqual(self.run_client(prompts), 0)
        self.assertEqual([body["prompt"] for _, body, _ in self.server.seen], ["y"])
        self.assertEqual(self.out.read_bytes(), whole * 2)
        self.assertEqual([row["sample_id"] for row in self.log()], ["row_0", "row_1"])
        self.server.seen.clear()
        self.assertEqual((self.run_client(prompts), self.server.seen), (0, []))
        # Another request under the same name, and files that contradict each other, are refused.
        self.assertEqual(self.run_client(prompts, "--max-tokens", "9"), 3)
        self.assertIn("another request", self.said.getvalue())
        self.out.write_bytes(whole[:5])
        self.assertEqual(self.run_client(prompts), 3)
        log.unlink()
        self.assertEqual(self.run_client(prompts), 3)

    def test_wrong_input_is_refused_before_anything_is_asked(self):
        for prompts, more, code, part in (
            ([{"text": "x"}], [], 3, "neither `prompt`"),
            ([{"prompt_ids": [1, -1]}], [], 3, "list of token ids"),
            ([{"prompt": "x", "id": 1}, {"prompt": "y", "id": 1}], [], 3, "comes twice"),
            ([{"prompt_ids": [1]}], ["--api", "chat"], 3, "chat template"),
            ([{"prompt": "x"}], ["--server", "openai", "--prompt-logprobs", "1"], 2, "gives none"),
            ([{"prompt": "x"}], ["--extra", "[]"], 2, "JSON object"),
            ([{"prompt": "x"}], ["--api-key-env", "LOCKSTEP_NO_SUCH_KEY"], 2, "no such variable"),
        ):
            self.assertEqual(self.run_client(prompts, *more), code)
            self.assertIn(part, self.said.getvalue())
        self.assertEqual(self.server.seen, [])

    def test_a_key_is_sent_and_written_nowhere(self):
        with mock.patch.dict("os.environ", {"LOCKSTEP_TEST_KEY": "k-123"}):
            self.assertEqual(self.run_client([{"prompt": "x"}], "--api-key-env", "LOCKSTEP_TEST_KEY"), 0)
        self.assertEqual(self.server.seen[0][2], "Bearer k-123")
        written = "".join(path.read_text() for path in Path(self.folder.name).iterdir())
        self.assertNotIn("k-123", written)

    def test_waits_double_and_are_bounded(self):
        waits = []
        server = Server("http://127.0.0.1:9", {}, 1.0)
        with mock.patch.object(server, "send", side_effect=ConnectionRefusedError("no")):
            answer = Asker(server, 7, 1.0, waits.append).ask("/v1/completions", {})
        self.assertEqual((waits, answer.attempts), ([1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0], 8))
        self.assertIn("ConnectionRefusedError", answer.error)


if __name__ == "__main__":
    unittest.main()
