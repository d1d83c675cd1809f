// Not written yet.
KERNEL logits_stub(u32 nothing) {}
