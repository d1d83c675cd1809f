"""The files of a recorded server: responses, and beside them what was asked and what failed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from .errors import RecordError


def _digest(path: str, body: dict) -> str:
    return hashlib.sha256(json.dumps([path, body], sort_keys=True).encode()).hexdigest()


class ResponseFiles:
    """Appends to `FILE` and `FILE.requests.jsonl`; a response counts when its line of the second file is whole."""

    def __init__(self, out):
        self.path = Path(out)
        self.log_path = Path(f"{out}.requests.jsonl")
        self._answered = {}
        self._end = 0
        self._line = 0

    def __enter__(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        log_end = self._read_log()
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._end:
            raise RecordError(f"{self.path}: has {size} bytes and {self.log_path} tells of {self._end}; move both away")
        if size and not self.log_path.exists():
            raise RecordError(f"{self.path}: already there, without {self.log_path.name}; choose another name")
        self._file, self._log = open(self.path, "ab"), open(self.log_path, "ab")
        # What was being written when the last recording was stopped.
        self._file.truncate(self._end)
        self._log.truncate(log_end)
        return self

    def __exit__(self, *_):
        self._file.close()
        self._log.close()

    def _read_log(self) -> int:
        if not self.log_path.exists():
            return 0
        data, end = self.log_path.read_bytes(), 0
        for number, line in enumerate(data.split(b"\n")[:-1], 1):
            try:
                record = json.loads(line)
                if record["response"] is not None:
                    self._answered[record["sample_id"]] = record["request_sha256"]
                    self._end = record["response"]["offset"] + record["response"]["bytes"]
                    self._line = record["response"]["line"]
            except (ValueError, KeyError, TypeError):
                raise RecordError(f"{self.log_path}:{number}: damaged; move {self.path.name} and it away") from None
            end += len(line) + 1
        return end

    def has(self, sample_id: str, path: str, body: dict) -> bool:
        """True where this request was answered; another request under the same name is refused."""
        known = self._answered.get(sample_id)
        if known is not None and known != _digest(path, body):
            raise RecordError(f"{self.path}: sample `{sample_id}` was asked with another request; choose another --out")
        return known is not None

    def add(self, sample_id: str, path: str, body: dict, answer) -> None:
        """A response, or the error that came instead."""
        response = None
        if answer.text is not None:
            line = answer.text.encode() + b"\n"
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._line += 1
            response = {"line": self._line, "offset": self._end, "bytes": len(line)}
            self._end += len(line)
            self._answered[sample_id] = _digest(path, body)
        record = {
            "sample_id": sample_id,
            "path": path,
            "request": body,
            "request_sha256": _digest(path, body),
            "response": response,
            "error": answer.error,
            "status": answer.status,
            "headers": answer.headers,
            "attempts": answer.attempts,
            "seconds": round(answer.seconds, 6),
        }
        self._log.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        self._log.flush()

    def server(self, said: dict) -> None:
        """What the server says of itself, once for each start of the recording."""
        path = Path(f"{self.path}.server.json")
        known = json.loads(path.read_text()) if path.exists() else []
        path.write_text(json.dumps([*known, said], indent=1) + "\n")
