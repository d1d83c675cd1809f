// Not written yet.
KERNEL select_score_stub(u32 nothing) {}
