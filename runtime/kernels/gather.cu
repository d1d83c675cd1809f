// Not written yet.
KERNEL gather_stub(u32 nothing) {}
