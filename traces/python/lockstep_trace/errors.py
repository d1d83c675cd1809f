"""Errors of the recorders."""

from __future__ import annotations


class RecordError(RuntimeError):
    """What was asked for cannot be recorded truthfully: what, and what to do."""


class UsageError(RecordError):
    """Arguments that do not go together."""
