//! Arms of an experiment: what each was made of, and what it scored.

use std::path::Path;

use serde_json::{Map, Number, Value};

use super::fields::{Field, root};
use crate::TraceError;
use crate::logprobs::Node;

/// Arms at most: every pair is looked at.
const MOST_ARMS: usize = 2000;

/// Arms of an experiment. The JSON: a list of objects, or one a line:
///
/// `[{"arm": "dense", FACTOR: level, .., "score": 0.95}, ..]`
///
/// `arm` (or `name`, `id`) names the arm, the effect is a number, everything else is a factor. Members of nested objects are factors
/// `outer.inner`. A factor that is absent from an arm, and `null`, are the same level.
#[derive(Debug, Clone, PartialEq)]
pub struct ArmTable {
    /// Factors in the order in which they first come.
    pub factors: Vec<String>,
    /// Arms in order.
    pub arms: Vec<Arm>,
    /// Arms without an effect.
    pub without_effect: Vec<String>,
}

/// One arm.
#[derive(Debug, Clone, PartialEq)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// Levels, one for each of [`ArmTable::factors`].
    pub levels: Vec<Value>,
    /// The effect.
    pub effect: f64,
}

impl ArmTable {
    /// Reads a file; `effect` is the key of the score, members under a key of `ignored` are no factors.
    ///
    /// # Errors
    /// [`TraceError`] where an arm is no object, two arms have one name, or an effect is no finite number.
    pub fn read(path: &Path, effect: &str, ignored: &[String]) -> Result<Self, TraceError> {
        let node = root(path)?;
        let form = Field::root(path, &node);
        let records = form.list()?;
        if records.len() > MOST_ARMS {
            return Err(form.fault(format!("{} arms; up to {MOST_ARMS} are judged", records.len())));
        }
        let mut raw: Vec<Raw> = Vec::with_capacity(records.len());
        let (mut factors, mut without_effect) = (Vec::new(), Vec::new());
        for (at, record) in records.iter().enumerate() {
            let mut flat = Vec::new();
            flatten(record, "", &mut flat)?;
            let named = ["arm", "name", "id"]
                .iter()
                .find_map(|key| flat.iter().position(|(name, ..)| name == key));
            let name = named.map_or_else(|| format!("arm {at}"), |at| plain(&flat.remove(at).1));
            if raw.iter().any(|(other, ..)| *other == name) || without_effect.contains(&name) {
                return Err(record.fault(format!("a second arm `{name}`")));
            }
            let score = flat.iter().position(|(name, ..)| name == effect).map(|at| flat.remove(at));
            let Some((_, value, field)) = score.filter(|(_, value, _)| !value.is_null()) else {
                without_effect.push(name);
                continue;
            };
            let score = value.as_f64().filter(|_| field.number().is_ok());
            let score = score.ok_or_else(|| field.fault("the effect is no finite number"))?;
            flat.retain(|(name, ..)| !ignored.contains(name));
            for (factor, ..) in &flat {
                if !factors.contains(factor) {
                    factors.push(factor.clone());
                }
            }
            let levels = flat.into_iter().map(|(factor, level, _)| (factor, level)).collect();
            raw.push((name, levels, score));
        }
        let arms = raw.into_iter().map(|(name, levels, effect)| {
            let level = |factor: &String| {
                levels
                    .iter()
                    .find(|(name, _)| name == factor)
                    .map_or(Value::Null, |(_, v)| v.clone())
            };
            Arm { name, levels: factors.iter().map(level).collect(), effect }
        });
        Ok(Self { arms: arms.collect(), factors, without_effect })
    }
}

/// Name, levels by factor, and effect of an arm.
type Raw = (String, Vec<(String, Value)>, f64);

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

type Flat<'a> = (String, Value, Field<'a>);

/// The reader of JSON bounds the depth of a document, so this may recurse.
fn flatten<'a>(field: &Field<'a>, outer: &str, out: &mut Vec<Flat<'a>>) -> Result<(), TraceError> {
    for (key, member) in field.members()? {
        let name = if outer.is_empty() { key.to_owned() } else { format!("{outer}.{key}") };
        if member.node.members().is_some() {
            flatten(&member, &name, out)?;
        } else {
            out.push((name, level(member.node), member));
        }
    }
    Ok(())
}

fn level(node: &Node) -> Value {
    match node {
        Node::Null => Value::Null,
        Node::Bool(said) => Value::Bool(*said),
        Node::Text(text) => Value::String(text.clone()),
        Node::List(items) => Value::Array(items.iter().map(level).collect()),
        Node::Object(members) => {
            let members = members.iter().map(|(key, node)| (key.clone(), level(node)));
            Value::Object(members.collect::<Map<_, _>>())
        }
        Node::Number(number) => match node.index() {
            Some(whole) => Value::Number(whole.into()),
            // A word such as NaN is a level by its name.
            None => Number::from_f64(number.value)
                .map_or_else(|| Value::String(number.value.to_string()), Value::Number),
        },
    }
}
