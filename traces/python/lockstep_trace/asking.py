"""One server, asked over HTTP with bounded retries."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

from .errors import RecordError, UsageError

# Largest answer that is read.
MAX_BYTES = 1 << 30
MAX_WAIT = 30.0
SECRET = re.compile("api_key|password|secret|credential|hf_token", re.IGNORECASE)
BUSY = (408, 409, 425, 429, 500, 502, 503, 504)
# Headers that say which server and version answered; others may hold cookies or keys.
KEPT_HEADERS = ("server", "date", "content-type", "x-request-id", "openai-version", "openai-processing-ms", "x-vllm-version")


@dataclass
class Answer:
    """What came of a request: the response as one line, or the error."""

    text: str | None
    error: str | None
    status: int | None
    headers: dict
    attempts: int
    seconds: float


class Server:
    """Where requests go."""

    def __init__(self, base_url: str, headers: dict, timeout: float):
        if not base_url.startswith(("http://", "https://")):
            raise UsageError(f"--base-url {base_url}: an address that starts with http:// or https:// is wanted")
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._headers = headers
        self._timeout = timeout

    def send(self, path: str, body=None, timeout=None):
        """Status, headers and bytes; HTTP errors are answers too. Raises `OSError` and `http.client.HTTPException`."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base_url + path, data=data, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout or self._timeout) as response:
                return response.status, _kept(response.headers), _read(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _kept(error.headers), _read(error)

    def describe(self) -> dict:
        """What `/v1/models`, `/version` and the servers' own pages say; a page that is not there is said to be so."""
        found = {}
        for path in ("/v1/models", "/version", "/get_server_info", "/props"):
            try:
                status, headers, data = self.send(path, timeout=min(self._timeout, 30.0))
                found[path] = {"status": status, "headers": headers}
                if status == 200:
                    found[path]["body"] = _public(json.loads(data))
            except (OSError, http.client.HTTPException, ValueError) as error:
                found[path] = {"error": _said(error)}
        return {"pages": found}

    def kind(self) -> str:
        """vllm, sglang or llama, as the owner of its models says; else openai."""
        try:
            status, _, data = self.send("/v1/models", timeout=min(self._timeout, 30.0))
            models = json.loads(data)["data"] if status == 200 else []
            owners = {str(model.get("owned_by", "")) for model in models}
        except (OSError, http.client.HTTPException) as error:
            raise RecordError(f"{self.base_url}/v1/models: {_said(error)}; is the server there? (--server says what it is)") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            return "openai"
        return {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama"}.get(next(iter(owners), ""), "openai")


class Asker:
    """Sends a request until it is answered, at most `retries` times more."""

    def __init__(self, server: Server, retries: int, wait: float, sleep=time.sleep):
        self._server = server
        self._retries = retries
        self._wait = wait
        self._sleep = sleep

    def ask(self, path: str, body: dict) -> Answer:
        started = time.perf_counter()
        wait = self._wait
        for attempt in range(1, self._retries + 2):
            answer, again = self._once(path, body)
            if not again or attempt > self._retries:
                break
            self._sleep(min(_retry_after(answer.headers) or wait, MAX_WAIT))
            wait = min(wait * 2, MAX_WAIT)
        answer.attempts = attempt
        answer.seconds = time.perf_counter() - started
        return answer

    def _once(self, path: str, body: dict):
        """An answer, and whether another attempt may bring a better one."""
        try:
            status, headers, data = self._server.send(path, body)
        except (OSError, http.client.HTTPException) as error:
            return Answer(None, _said(error), None, {}, 0, 0.0), True
        if status != 200:
            text = data[:2000].decode("utf-8", "replace")
            return Answer(None, f"HTTP {status}: {text}", status, headers, 0, 0.0), status in BUSY
        try:
            text = data.decode("utf-8")
            if not isinstance(json.loads(text), dict):
                raise ValueError("no JSON object")
        except ValueError as error:
            return Answer(None, f"HTTP 200, but not the JSON that was asked for: {error}", status, headers, 0, 0.0), True
        # Line ends in JSON stand between values only, so this changes nothing but the layout.
        line = text.replace("\r", " ").replace("\n", " ").strip()
        return Answer(line, None, status, headers, 0, 0.0), False


def _read(response) -> bytes:
    data = response.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise http.client.HTTPException(f"an answer of more than {MAX_BYTES} bytes")
    expected = response.headers.get("Content-Length")
    if expected and expected.isdigit() and len(data) < int(expected):
        raise http.client.IncompleteRead(data, int(expected) - len(data))
    return data


def _public(value):
    """The page without what SGLang's server arguments hold of keys."""
    if isinstance(value, dict):
        return {key: _public(inner) for key, inner in value.items() if not SECRET.search(key)}
    return [_public(inner) for inner in value] if isinstance(value, list) else value


def _kept(headers) -> dict:
    return {name.lower(): value for name, value in headers.items() if name.lower() in KEPT_HEADERS + ("retry-after",)}


def _retry_after(headers: dict):
    value = headers.get("retry-after", "")
    return float(value) if value.isdigit() else None


def _said(error) -> str:
    reason = getattr(error, "reason", None)
    return f"{type(error).__name__}: {reason if reason is not None else error}"
