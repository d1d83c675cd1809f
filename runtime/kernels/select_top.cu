// Not written yet.
KERNEL select_top_stub(u32 nothing) {}
