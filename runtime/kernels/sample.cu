// Not written yet.
KERNEL sample_stub(u32 nothing) {}
