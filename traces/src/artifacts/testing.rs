//! Writers of foreign artifacts, for tests.

/// A bundle with these sections back to back.
pub(crate) fn bundle(magic: &[u8; 8], sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut offset = 0;
    let mut list = Vec::new();
    for (name, bytes) in sections {
        list.push(format!("\"{name}\":{{\"offset\":{offset},\"size\":{}}}", bytes.len()));
        offset += bytes.len();
    }
    let header = format!(
        "{{\"model_id\":\"toy\",\"precision\":\"fp16\",\"max_cache_length\":4096,\"created_at\":\"2026-04-17T08:00:00Z\",\"sections\":{{{}}}}}",
        list.join(",")
    );
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    for (_, section) in sections {
        bytes.extend_from_slice(section);
    }
    bytes
}
