// Not written yet.
KERNEL attention_prefill_stub(u32 nothing) {}
