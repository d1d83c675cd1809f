"""The file of prompts."""

from __future__ import annotations

import json

from .errors import RecordError


def read_prompts(path) -> list:
    """Rows with an `id` of their own and one of `prompt`, `prompt_ids`, `messages`."""
    rows, seen = [], set()
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _row(path, number, line)
        row["id"] = str(row.get("sample_id", row.get("id", f"row_{len(rows)}")))
        if row["id"] in seen:
            raise RecordError(f"{path}:{number}: sample `{row['id']}` comes twice")
        seen.add(row["id"])
        rows.append(row)
    if not rows:
        raise RecordError(f"{path}: no prompts")
    return rows


def _row(path, number: int, line: str) -> dict:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{path}:{number}: not valid JSON: {error}") from None
    if not isinstance(row, dict):
        raise RecordError(f"{path}:{number}: each line is an object with `prompt`, `prompt_ids` or `messages`")
    ids, messages = row.get("prompt_ids"), row.get("messages")
    if ids is not None and not (isinstance(ids, list) and ids and all(type(token) is int and token >= 0 for token in ids)):
        raise RecordError(f"{path}:{number}: `prompt_ids` is a list of token ids")
    if messages is not None and not isinstance(messages, list):
        raise RecordError(f"{path}:{number}: `messages` is a list")
    if ids is None and messages is None and not isinstance(row.get("prompt"), str):
        raise RecordError(f"{path}:{number}: neither `prompt` nor `prompt_ids` nor `messages`")
    return row
