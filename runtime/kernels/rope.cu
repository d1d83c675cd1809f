// Not written yet.
KERNEL rope_stub(u32 nothing) {}
