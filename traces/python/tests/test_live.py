"""The recorder on a tiny random model; skipped without torch and transformers."""

import contextlib
import json
import math
import tempfile
import unittest
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    from lockstep_trace import RecordError, record
    from lockstep_trace.rows import logits_hash, summaries
except ImportError as error:
    raise unittest.SkipTest(f"no transformers here: {error}") from None


def tiny(**more):
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=60,
        pad_token_id=0,
        bos_token_id=None,
        **more,
    )
    return LlamaForCausalLM(config).eval()


class RowsTest(unittest.TestCase):
    def test_ties_go_to_the_lower_id_and_nan_comes_last(self):
        inf, nan = math.inf, math.nan
        rows = torch.tensor([[1, 3, 3, 2, 3.0], [nan, -inf, inf, -inf, 1], [-inf] * 4 + [0], [2, 2, 2, 2, 2]])
        tops = [(row["argmax"], row["top_ids"], row["finite"]) for row in summaries(rows, 3)]
        self.assertEqual(tops, [
            (1, [1, 2, 4], True),
            (2, [2, 4, 1], False),
            (4, [4, 0, 1], False),
            (0, [0, 1, 2], True),
        ])
        row = next(summaries(torch.tensor([[0.0, 0.0, 0.0, 0.0]]), 8))
        self.assertEqual((row["top_ids"], row["logsumexp"]), ([0, 1, 2, 3], math.log(4)))

    def test_the_hash_is_the_one_of_lockstep(self):
        # The published first output of SplitMix64 from the state 0; tests/it/python.rs holds whole hashes against Lockstep's.
        from lockstep_trace import rows

        self.assertEqual(int(rows._splitmix64(rows.numpy.zeros(1, dtype=rows.numpy.uint64))[0]), 0xE220A8397B1DCDAF)
        one, other = torch.tensor([0.0, math.nan]), torch.tensor([-0.0, -math.nan])
        self.assertEqual(logits_hash(one.numpy()), logits_hash(other.numpy()))


class RecorderTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = Path(self.folder.name) / "out"
        self.model = tiny()
        self.ids = torch.tensor([[5, 9, 11, 3, 8, 20, 31]])

    def lines(self, kind):
        lines = [json.loads(line) for line in (self.out / "trace.jsonl").read_text().splitlines()]
        return [line for line in lines if line.get("t") == kind]

    def test_a_row_says_what_the_model_computed(self):
        with torch.no_grad():
            logits = self.model(self.ids).logits[0]
            with record(self.model, self.out, hidden=[2], logits=[2, 6], caches=[3], top_k=3) as recorder:
                self.model(self.ids, use_cache=True)
                recorder.end([17], "length")
        rows = self.lines("step")
        self.assertEqual([row["token"] for row in rows], self.ids[0].tolist())
        self.assertEqual([row["rows"] for row in rows], [[at, at + 1] for at in range(7)])
        self.assertEqual([row["next"] for row in rows], [None] * 6 + [17])
        for row, values in zip(rows, logits):
            top = torch.topk(values, 3)
            self.assertEqual(row["top_ids"], top.indices.tolist())
            self.assertEqual(torch.tensor(row["top_logits"]).tolist(), top.values.tolist())
            self.assertAlmostEqual(row["logsumexp"], math.log(sum(math.exp(v) for v in values.tolist())), places=12)
        dump = load_file(self.out / "tensors/sample_0/step_0000002.safetensors")
        self.assertTrue(torch.equal(dump["logits"], logits[2]))
        states = self.model(self.ids, output_hidden_states=True).hidden_states
        self.assertTrue(torch.equal(dump["hidden.embed"], states[0][0, 2]))
        self.assertTrue(torch.equal(dump["hidden.layer00.out"], states[1][0, 2]))
        self.assertTrue(torch.equal(dump["hidden.final_norm"], states[2][0, 2]))
        self.assertEqual(len([name for name in dump if ".layer01." in name]), 11)
        cache = DynamicCache()
        self.model(self.ids[:, :4], past_key_values=cache)
        held = load_file(self.out / "tensors/sample_0/step_0000003.safetensors")
        self.assertEqual(held["cache.k.layer01"].shape, (2, 4, 8))
        torch.testing.assert_close(held["cache.v.layer01"], cache.layers[1].values[0])

    def test_hooks_are_gone_afterwards(self):
        module = __import__("sys").modules[type(self.model).__module__]
        before = module.apply_rotary_pos_emb
        with contextlib.suppress(ZeroDivisionError), record(self.model, self.out, hidden="all"):
            self.model(self.ids)
            1 / 0
        self.assertIs(module.apply_rotary_pos_emb, before)
        self.assertNotIn("generate", vars(self.model))
        self.assertFalse(any(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in self.model.modules()))
        self.assertEqual(self.lines("end"), [])

    def test_prompt_rows_without_logits_have_no_values(self):
        with record(self.model, self.out):
            self.model.generate(self.ids, max_new_tokens=3, do_sample=False)
        rows = self.lines("step")
        self.assertEqual(["argmax" in row for row in rows], [False] * 6 + [True] * 3)
        settings = {line["key"]: line["value"] for line in self.lines("setting")}
        self.assertEqual((settings["sampling.temperature"], settings["stop.max_new_tokens"]), (0.0, 3))

    def test_a_sequence_of_a_batch_ends_at_its_stop_token(self):
        first = self.model.generate(self.ids, max_new_tokens=4, do_sample=False)[0, 7:].tolist()
        both = torch.cat([self.ids, torch.tensor([[0, 0, 0, 0, 2, 4, 6]])])
        stop = first[1]
        with record(self.model, self.out, sample_id=["a", "b"]):
            self.model.generate(both, attention_mask=(both != 0).long(), max_new_tokens=9, do_sample=False, eos_token_id=stop)
        samples = {line["sample"]: line for line in self.lines("sample")}
        self.assertEqual((samples["a"]["generated_ids"], samples["a"]["finish"]), (first[:2], "eos"))
        self.assertEqual(samples["b"]["prompt_ids"], [2, 4, 6])
        rows = [row for row in self.lines("step") if row["sample"] == "a"]
        self.assertEqual((len(rows), rows[-1]["next"]), (8, stop))
        rows = [row for row in self.lines("step") if row["sample"] == "b"]
        self.assertEqual([row["rope"] for row in rows], list(range(len(rows))))

    def test_a_cache_that_is_cut_between_passes_shows_in_its_rows(self):
        cache = DynamicCache()
        with torch.no_grad(), record(self.model, self.out):
            self.model(self.ids, past_key_values=cache)
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[:, :, 2:], layer.values[:, :, 2:]
            self.model(torch.tensor([[3]]), past_key_values=cache, position_ids=torch.tensor([[7]]))
        rows = self.lines("step")
        self.assertEqual([row["rows"] for row in rows[-2:]], [[6, 5], [5, 6]])
        self.assertEqual((rows[-1]["position"], rows[-1]["rope"]), (7, 7))

    def test_what_cannot_be_recorded_is_refused(self):
        def refused(part, call, **more):
            self.out = Path(self.folder.name) / str(len(list(Path(self.folder.name).iterdir())))
            with self.assertRaisesRegex(RecordError, part), torch.no_grad(), record(self.model, self.out, **more):
                call()
            self.assertEqual(self.lines("end"), [])

        refused("beams", lambda: self.model.generate(self.ids, num_beams=2, max_new_tokens=2))
        refused("use_cache=False", lambda: self.model.generate(self.ids, use_cache=False, max_new_tokens=2))
        refused("input_ids", lambda: self.model(inputs_embeds=torch.zeros(1, 3, 32)))
        refused("padded on the right", lambda: self.model(self.ids, attention_mask=torch.tensor([[1, 1, 1, 1, 1, 0, 0]])))
        refused("no forward pass", lambda: None)
        refused("more samples than names", lambda: (self.model(self.ids), self.model(self.ids)), sample_id="one")

        cache = DynamicCache()
        self.model(self.ids, past_key_values=cache)
        refused("first token on", lambda: self.model(self.ids[:, :1], past_key_values=cache))
        refused("is a DynamicSliding", self._sliding, caches="end")

    def _sliding(self):
        from transformers.cache_utils import DynamicSlidingWindowLayer

        cache = DynamicCache()
        cache.layers = [DynamicSlidingWindowLayer(sliding_window=4) for _ in range(2)]
        cache.layer_class_to_replicate = None
        self.model(self.ids, past_key_values=cache)


if __name__ == "__main__":
    unittest.main()
