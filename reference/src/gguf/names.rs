//! What llama.cpp's converter calls the tensors, and where it moves rows.

use candle_core::quantized::gguf_file::Content;

/// The name under which a GGUF file holds the tensor with this Hugging Face name; unknown names stay.
pub(crate) fn stored_name(name: &str) -> String {
    let Some(rest) = name.strip_prefix("model.layers.") else {
        return match name {
            "model.embed_tokens.weight" => "token_embd.weight",
            "model.norm.weight" => "output_norm.weight",
            "lm_head.weight" => "output.weight",
            other => other,
        }
        .to_owned();
    };
    let mut pieces = rest.splitn(3, '.');
    let (Some(layer), Some(first), Some(rest)) = (pieces.next(), pieces.next(), pieces.next())
    else {
        return name.to_owned();
    };
    let stored = match (first, rest.split_once('.')) {
        ("input_layernorm", None) => format!("attn_norm.{rest}"),
        ("post_attention_layernorm", None) => format!("ffn_norm.{rest}"),
        ("self_attn", Some(("o_proj", end))) => format!("attn_output.{end}"),
        ("self_attn", Some((part, end))) => {
            format!("attn_{}.{end}", part.trim_end_matches("_proj"))
        }
        ("mlp", Some((part, end))) => format!("ffn_{}.{end}", part.trim_end_matches("_proj")),
        _ => return name.to_owned(),
    };
    format!("blk.{layer}.{stored}")
}

/// Heads whose rows stand pair by pair in the file: the q and k projections (and biases) of the `llama` family, which the converter writes
/// as `reshape(heads, 2, head_dim / 2, ...).swapaxes(1, 2)` of the original.
pub(crate) fn heads_in_pairs(content: &Content, stored: &str) -> Option<usize> {
    let metadata = &content.metadata;
    let text = metadata.get("general.architecture")?.to_string().ok()?;
    if text != "llama" {
        return None;
    }
    let count = |key: &str| {
        metadata
            .get(key)
            .and_then(|value| value.to_u64().ok())
            .and_then(|n| usize::try_from(n).ok())
    };
    let queries = count("llama.attention.head_count");
    let part = stored.split('.').nth(2)?;
    match part {
        "attn_q" => queries,
        "attn_k" => count("llama.attention.head_count_kv").or(queries),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_converter() {
        for (name, wanted) in [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("lm_head.weight", "output.weight"),
            ("model.layers.7.input_layernorm.weight", "blk.7.attn_norm.weight"),
            ("model.layers.7.post_attention_layernorm.weight", "blk.7.ffn_norm.weight"),
            ("model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight"),
            ("model.layers.0.self_attn.k_proj.bias", "blk.0.attn_k.bias"),
            ("model.layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight"),
            ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"),
        ] {
            assert_eq!(stored_name(name), wanted);
        }
    }
}
