//! What lm-eval sent to its model, and the log-likelihoods that came back.
//!
//! Its logger turns every inner value of `resps` into text before it writes, so that a log-likelihood stands in a file either as
//! `[-4.5, false]` or as `["-4.5", "False"]`: numbers that are no answer of a model.

use serde_json::Value;

/// Requests of a row: `gen_args_0`, `gen_args_1`, ...; older files have a list of pairs.
fn requests(arguments: &Value) -> Vec<(Option<&Value>, Option<&Value>)> {
    match arguments {
        Value::Object(map) => (0..map.len())
            .map_while(|at| map.get(&format!("gen_args_{at}")))
            .map(|one| (one.get("arg_0"), one.get("arg_1")))
            .collect(),
        Value::Array(list) => list.iter().map(|one| (one.get(0), one.get(1))).collect(),
        _ => Vec::new(),
    }
}

/// Prompt of the first request as it was sent: text, or a chat's messages as JSON text.
pub(super) fn prompt(arguments: &Value) -> Option<String> {
    match requests(arguments).first()?.0? {
        Value::String(text) => Some(text.clone()),
        _ => None,
    }
}

/// Generation settings of the first request; `None` where it asks for a likelihood.
pub(super) fn settings(arguments: &Value) -> Option<Value> {
    requests(arguments).first()?.1.filter(|value| value.is_object()).cloned()
}

/// Log-likelihoods of a row's requests in order, nats, each with "it is what greedy decoding gives"; `None` where any response is
/// something else, or where the row asked for text. An infinity, which JSON has not, is read as `-inf` from its word.
pub(super) fn values(arguments: Option<&Value>, resps: &Value) -> Option<Vec<(f64, bool)>> {
    if arguments.and_then(settings).is_some() {
        return None;
    }
    let list = resps.as_array().filter(|list| !list.is_empty())?;
    list.iter().map(|one| pair(one).or_else(|| pair(one.get(0)?))).collect()
}

fn pair(value: &Value) -> Option<(f64, bool)> {
    let [number, greedy] = value.as_array()?.as_slice() else { return None };
    let number = match number {
        Value::String(text) => text.parse().ok()?,
        other => other.as_f64()?,
    };
    let greedy = match greedy {
        Value::String(text) if text == "True" => true,
        Value::String(text) if text == "False" => false,
        other => other.as_bool()?,
    };
    Some((number, greedy))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn likelihoods_are_read_as_numbers_and_as_the_texts_that_the_logger_makes_of_them() {
        let wanted = Some(vec![(-4.5, false), (-0.25, true)]);
        assert_eq!(values(None, &json!([[[-4.5, false]], [[-0.25, true]]])), wanted);
        assert_eq!(values(None, &json!([[["-4.5", "False"]], [["-0.25", "True"]]])), wanted);
        assert_eq!(values(None, &json!([["-4.5", "False"], ["-0.25", "True"]])), wanted);
        let infinite = values(None, &json!([[["-inf", "False"]]])).unwrap();
        assert!(infinite[0].0.is_infinite() && infinite[0].0 < 0.0);
    }

    #[test]
    fn texts_are_no_likelihoods_even_where_they_look_like_one() {
        assert_eq!(values(None, &json!([["it is 4"]])), None);
        assert_eq!(values(None, &json!([])), None);
        let asked = json!({"gen_args_0": {"arg_0": "p", "arg_1": {"until": ["\n"]}}});
        // Two repeats of a generation.
        assert_eq!(values(Some(&asked), &json!([["-4.5", "False"]])), None);
        assert_eq!(settings(&asked), Some(json!({"until": ["\n"]})));
        assert_eq!(prompt(&asked).as_deref(), Some("p"));
        let choice = json!({"gen_args_0": {"arg_0": "p", "arg_1": " a"}});
        assert_eq!(settings(&choice), None);
        assert_eq!(prompt(&json!([["old", " a"]])).as_deref(), Some("old"));
    }
}
