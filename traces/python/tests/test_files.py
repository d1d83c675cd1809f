"""The trace writer, without torch."""

import json
import math
import struct
import tempfile
import unittest
from pathlib import Path

from types import SimpleNamespace

from lockstep_trace import RecordError, TraceWriter, cache
from lockstep_trace.files import f32, f64, folder_of


class FilesTest(unittest.TestCase):
    def test_digits_give_the_bits_back(self):
        for bits in (0x00000001, 0x00800000, 0x3DCCCCCD, 0x3F800001, 0x4114D8D3, 0x7F7FFFFF, 0xC1200000):
            value = struct.unpack("<f", struct.pack("<I", bits))[0]
            again = struct.unpack("<I", struct.pack("<f", json.loads(json.dumps(f32(value)))))[0]
            self.assertEqual(again, bits)
        self.assertEqual([f32(math.nan), f32(math.inf), f64(-math.inf)], ["NaN", "Infinity", "-Infinity"])
        self.assertEqual(json.loads(json.dumps(f64(12.101924572510162))), 12.101924572510162)

    def test_a_cache_is_found_under_the_newer_and_the_older_name(self):
        for name in ("cache", "past_key_values"):
            self.assertEqual(cache.fed({name: "held", "input_ids": "ids"}), "held")
            self.assertEqual(cache.returned(SimpleNamespace(**{name: "held"})), "held")
        self.assertEqual(cache.fed({"cache": None, "past_key_values": "held"}), "held")
        self.assertIsNone(cache.fed({"input_ids": "ids"}))
        self.assertIsNone(cache.returned(SimpleNamespace(logits=1)))

    def test_folders_are_named_as_in_a_run(self):
        for sample, folder in (("a b", "a%20b"), (".x", "%2Ex"), ("a.b_c-1", "a.b_c-1"), ("é", "%C3%A9"), ("", "%")):
            self.assertEqual(folder_of(sample), folder)

    def test_only_a_finished_trace_has_an_end(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, finish in (("whole", True), ("stopped", False)):
                writer = TraceWriter(Path(folder) / name, {"top_k": 1})
                writer.step({"sample": "s"})
                writer.finish() if finish else writer.abandon()
                lines = [json.loads(line) for line in (Path(folder) / name / "trace.jsonl").read_text().splitlines()]
                self.assertEqual(lines[0], {"lockstep_trace": "1.0", "top_k": 1})
                self.assertEqual(lines[-1].get("t"), "end" if finish else "step")
            with self.assertRaises(RecordError):
                TraceWriter(Path(folder) / "whole", {})


if __name__ == "__main__":
    unittest.main()
