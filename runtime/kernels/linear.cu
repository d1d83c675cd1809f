// Not written yet.
KERNEL linear_stub(u32 nothing) {}
