// Not written yet.
KERNEL select_reduce_stub(u32 nothing) {}
