// Not written yet.
KERNEL attention_decode_stub(u32 nothing) {}
