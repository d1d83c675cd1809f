"""Asks a running server for completions with log-probabilities, and keeps what it answers as it answers it.

    python -m lockstep_trace.client --base-url http://127.0.0.1:8000 --model NAME --prompts FILE --out FILE

`--out FILE` gets one response a line, as the server gave it; `FILE.requests.jsonl` one line an attempt at a prompt:
what was asked, what came (status, headers, bytes of `FILE`) or what failed; `FILE.server.json` what the server says of
itself. A failure is recorded and never skipped in silence. The same command again goes on where it stopped.

Exit: 0 every prompt has a response, 1 some have none, 2 usage, 3 files that contradict each other.
"""

from __future__ import annotations

import argparse
import os
import sys

from .asking import Asker, Server
from .bodies import APIS, SERVERS, Options, build
from .errors import RecordError, UsageError
from .prompts import read_prompts
from .responses import ResponseFiles


def main(argv=None) -> int:
    args = _arguments(argv)
    try:
        prompts = read_prompts(args.prompts)
        headers = _headers(args.api_key_env)
        server = Server(args.base_url, headers, args.timeout)
        kind = args.server or server.kind()
        options = Options.of(args, kind)
        requests = [(row, build(row, options)) for row in prompts]
        asker = Asker(server, args.retries, args.wait)
        with ResponseFiles(args.out) as files:
            files.server({"base_url": args.base_url, "kind": kind, **server.describe()})
            failed = _ask(requests, files, asker, options)
    except RecordError as error:
        print(f"lockstep-trace-client: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 3
    if failed:
        print(f"lockstep-trace-client: {failed} of {len(prompts)} prompts have no response; see {args.out}.requests.jsonl", file=sys.stderr)
    return 1 if failed else 0


def _ask(requests, files, asker, options) -> int:
    failed = 0
    for number, (row, body) in enumerate(requests):
        if files.has(row["id"], options.path, body):
            continue
        answer = asker.ask(options.path, body)
        files.add(row["id"], options.path, body, answer)
        failed += answer.text is None
        said = answer.error if answer.text is None else f"{answer.seconds:.1f} s"
        print(f"{number + 1}/{len(requests)} {row['id']}: {said}", file=sys.stderr)
    return failed


def _headers(api_key_env) -> dict:
    headers = {"Content-Type": "application/json"}
    if api_key_env:
        key = os.environ.get(api_key_env)
        if not key:
            raise UsageError(f"--api-key-env {api_key_env}: no such variable")
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _arguments(argv):
    parser = argparse.ArgumentParser(prog="lockstep-trace-client", description="Record an OpenAI-compatible server's answers.")
    add = parser.add_argument
    add("--base-url", required=True, help="address without /v1, e.g. http://127.0.0.1:8000")
    add("--model", required=True, help="name as in /v1/models")
    add("--prompts", required=True, help="JSON lines: `prompt`, `prompt_ids` or `messages`; optionally `sample_id`, `seed`")
    add("--out", required=True, help="file of responses, one a line")
    add("--api", choices=sorted(APIS), default="completions")
    add("--server", choices=SERVERS, help="without it the server is asked what it is")
    add("--max-tokens", type=int, default=256)
    add("--temperature", type=float, default=0.0)
    add("--seed", type=int)
    add("--top-logprobs", type=int, default=5)
    add("--prompt-logprobs", type=int, metavar="K", help="log-probabilities of the prompt's tokens too (vLLM, SGLang)")
    add("--extra", default="{}", help="JSON object of further request fields")
    add("--retries", type=int, default=3, help="further attempts where the server is busy or does not answer")
    add("--wait", type=float, default=1.0, help="seconds before the first of them; doubled each time, 30 at most")
    add("--timeout", type=float, default=600.0)
    add("--api-key-env", metavar="NAME", help="variable that holds the key; the key is written nowhere")
    args = parser.parse_args(argv)
    if args.retries < 0 or args.max_tokens < 1 or args.top_logprobs < 0:
        parser.error("--retries and --top-logprobs must not be negative, --max-tokens must be 1 or more")
    return args


if __name__ == "__main__":
    sys.exit(main())
