//! From the value of a pickle to named tensors.

use super::pickle::{Id, Node, Pickle, TensorRef};

/// Containers inside one another at most.
const DEPTH_LIMIT: usize = 64;
/// Values looked at at most: shared containers make more of them than the pickle is long.
const VISIT_LIMIT: usize = 1 << 22;

/// What a pickle holds.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Tensors in the order of the pickle; a bare tensor has the empty name.
    pub(super) tensors: Vec<(String, TensorRef)>,
    /// Values that are no tensors.
    pub(super) others: usize,
    /// Classes that were not read.
    pub(super) opaque: Vec<String>,
}

/// The tensors below the root. The pair `{"value", "meta"}` of an SGLang dump stands for its value.
pub(super) fn tensors(pickle: &Pickle) -> Result<Found, String> {
    let mut found = Found::default();
    let root = sglang(pickle).unwrap_or(pickle.root);
    let mut left = VISIT_LIMIT;
    let mut stack = vec![(root, String::new(), 0_usize)];
    while let Some((id, name, depth)) = stack.pop() {
        left = left.checked_sub(1).ok_or("more values than any dump holds; refused")?;
        if depth > DEPTH_LIMIT {
            return Err(format!("`{name}`: containers nest more than {DEPTH_LIMIT} deep; refused"));
        }
        let below = |part: String| if name.is_empty() { part } else { format!("{name}.{part}") };
        match pickle.node(id) {
            Node::Tensor(tensor) => found.tensors.push((name, tensor.clone())),
            Node::Tuple(items) | Node::List(items) => {
                let items = items.iter().enumerate().rev();
                stack.extend(items.map(|(at, item)| (*item, below(at.to_string()), depth + 1)));
            }
            Node::Dict(items) => {
                let items = items.iter().rev();
                stack.extend(
                    items.map(|(key, value)| (*value, below(label(pickle, *key)), depth + 1)),
                );
            }
            Node::Opaque(what) => found.opaque.push(what.clone()),
            Node::Global(module, name) => found.opaque.push(format!("{module} {name}")),
            _ => found.others += 1,
        }
    }
    Ok(found)
}

/// The value of `{"value": .., "meta": ..}`.
fn sglang(pickle: &Pickle) -> Option<Id> {
    let Node::Dict(items) = pickle.node(pickle.root) else { return None };
    let named = |name: &str| {
        items.iter().find(|(key, _)| matches!(pickle.node(*key), Node::Text(text) if text == name))
    };
    let (_, value) = named("value")?;
    (items.len() == 2 && named("meta").is_some()).then_some(*value)
}

fn label(pickle: &Pickle, key: Id) -> String {
    match pickle.node(key) {
        Node::Text(text) => text.clone(),
        Node::Int(number) => number.to_string(),
        Node::Tuple(items) => {
            items.iter().map(|item| short(pickle, *item)).collect::<Vec<_>>().join("_")
        }
        _ => short(pickle, key),
    }
}

fn short(pickle: &Pickle, id: Id) -> String {
    match pickle.node(id) {
        Node::Text(text) => text.clone(),
        Node::Int(number) => number.to_string(),
        Node::Bool(value) => value.to_string(),
        Node::Float(value) => value.to_string(),
        _ => "?".to_owned(),
    }
}
