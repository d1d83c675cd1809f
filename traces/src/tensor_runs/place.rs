//! Where each tensor of a set belongs: in which dump of the run, under which name.

use std::collections::BTreeMap;

use regex::Regex;

use super::map::{MapRule, RunMap, filled, number};
use super::own;
use crate::tensor_files::{PlainTensor, TensorSet};
use crate::{DumpId, TraceError};

/// Rows of one tensor at most that become dumps of their own.
const ROW_LIMIT: usize = 1 << 20;

/// One tensor of a dump.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub(super) name: String,
    pub(super) tensor: PlainTensor,
}

/// A set sorted into dumps.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) dumps: BTreeMap<DumpId, Vec<Placed>>,
    /// Fed ids by sample and position.
    pub(super) tokens: BTreeMap<String, BTreeMap<u32, u32>>,
    /// Positions of the next token at compactions that say it.
    pub(super) absolute: BTreeMap<DumpId, u32>,
    /// Metadata of dumps that this project exported.
    pub(super) metadata: BTreeMap<DumpId, BTreeMap<String, String>>,
    /// Tensors that were kept under their own names.
    pub(super) kept: usize,
    /// Of those, how many had no step or iteration in their name.
    pub(super) unplaced: usize,
}

impl Plan {
    /// Sorts a set.
    pub(super) fn of(set: &TensorSet, map: &RunMap, sample: &str) -> Result<Self, TraceError> {
        let fault = |name: &str, what: String| TraceError::Tensor {
            path: set.path.clone(),
            tensor: name.to_owned(),
            what,
        };
        let mut rules = Vec::new();
        for rule in &map.rules {
            let compiled = rule.expression().map_err(|what| fault("", what))?;
            rules.push((compiled, rule));
        }
        let mut plan = Self::default();
        let exported = map.rules.is_empty() && own::exported(set);
        if exported {
            plan.metadata = own::metadata(set)?;
        }
        for tensor in &set.tensors {
            let named = |what| fault(&tensor.name, what);
            let found = rules.iter().find_map(|(regex, rule)| {
                regex.captures(&tensor.name).map(|captures| (captures, *rule))
            });
            if let Some((captures, rule)) = found {
                let given = map.sample.as_deref().unwrap_or(sample);
                plan.by_rule(tensor, &captures, rule, given)?.map_err(named)?;
                continue;
            }
            let restored = if exported { own::restored(set, tensor)? } else { tensor.clone() };
            if let Some(place) = exported.then(|| own::place(&restored.name)).flatten() {
                plan.by_own(&restored, place).map_err(named)?;
            } else {
                plan.as_it_is(tensor, map.sample.as_deref().unwrap_or(sample));
            }
        }
        Ok(plan)
    }

    fn by_rule(
        &mut self,
        tensor: &PlainTensor,
        captures: &regex::Captures<'_>,
        rule: &MapRule,
        sample: &str,
    ) -> Result<Result<(), String>, TraceError> {
        let mut tensor = match rule.declared() {
            Ok(Some(element)) => tensor.clone().declared(element)?,
            Ok(None) => tensor.clone(),
            Err(what) => return Ok(Err(what)),
        };
        if let Some(order) = &rule.permute {
            tensor = tensor.permuted(order)?;
        }
        Ok(self.placed(&tensor, captures, rule, sample))
    }

    fn placed(
        &mut self,
        tensor: &PlainTensor,
        captures: &regex::Captures<'_>,
        rule: &MapRule,
        sample: &str,
    ) -> Result<(), String> {
        let name = filled(&rule.to, captures, true)?;
        let sample_id = match &rule.sample {
            Some(text) => filled(text, captures, false)?,
            None => sample.to_owned(),
        };
        if let Some(text) = &rule.compaction {
            let id = DumpId::Compaction { sample_id, ordinal: number(text, captures)? };
            if let Some(text) = &rule.absolute_position {
                self.absolute.insert(id.clone(), number(text, captures)?);
            }
            return self.add(id, name, tensor.clone());
        }
        let text = rule.position.as_ref().ok_or("says no position")?;
        let first = number(text, captures)?;
        if name == "token_id" {
            return self.ids(tensor, &sample_id, first);
        }
        let rows = if rule.rows { tensor.shape.first().copied().unwrap_or(0) } else { 1 };
        if rows > ROW_LIMIT {
            return Err(format!("{rows} rows; up to {ROW_LIMIT} become dumps"));
        }
        for row in 0..rows {
            let one = if rule.rows { tensor.slice(row) } else { Some(tensor.clone()) };
            let one = one.ok_or("has no such row")?;
            let position = u32::try_from(row).ok().and_then(|row| first.checked_add(row));
            let position = position.ok_or("a position beyond 2^32")?;
            let id = DumpId::Step { sample_id: sample_id.clone(), position };
            self.add(id, name.clone(), one)?;
        }
        Ok(())
    }

    fn by_own(&mut self, tensor: &PlainTensor, place: own::Place) -> Result<(), String> {
        match place {
            own::Place::Dump(id, name) => self.add(id, name, tensor.clone()),
            own::Place::Tokens(sample_id, first) => self.ids(tensor, &sample_id, first),
        }
    }

    fn add(&mut self, id: DumpId, name: String, tensor: PlainTensor) -> Result<(), String> {
        let dump = self.dumps.entry(id.clone()).or_default();
        if dump.iter().any(|known| known.name == name) {
            return Err(format!(
                "is the second `{name}` of {}; correct the map",
                id.relative_path()
            ));
        }
        dump.push(Placed { name, tensor });
        Ok(())
    }

    fn ids(&mut self, tensor: &PlainTensor, sample_id: &str, first: u32) -> Result<(), String> {
        let ids = super::rows::ids(tensor)?;
        let known = self.tokens.entry(sample_id.to_owned()).or_default();
        for (position, id) in (first..).zip(ids) {
            if known.insert(position, id).is_some_and(|other| other != id) {
                return Err(format!(
                    "gives another id for position {position} than a tensor before it"
                ));
            }
        }
        Ok(())
    }

    /// Under its own name, in the dump of the step or iteration that the name tells.
    fn as_it_is(&mut self, tensor: &PlainTensor, sample: &str) {
        let step = step_of(&tensor.name);
        self.kept += 1;
        self.unplaced += usize::from(step.is_none());
        let id = DumpId::Step { sample_id: sample.to_owned(), position: step.unwrap_or(0) };
        let name = tensor.name.clone();
        // Names are unique in a set.
        self.dumps.entry(id).or_default().push(Placed { name, tensor: tensor.clone() });
    }
}

/// The step or iteration in a name: `step=3`, `step3/`, `iteration_3/`.
fn step_of(name: &str) -> Option<u32> {
    let expression = Regex::new(r"(?:^|[/_])(?:step[=_]?|iteration_)(?<n>\d+)(?:[/_]|$)").ok()?;
    expression.captures(name)?.name("n")?.as_str().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_by_the_names_of_four_engines() {
        for (name, step) in [
            ("step=3___rank=0___name=x", Some(3)),
            ("PP_0/TP_1/iteration_12/k", Some(12)),
            ("iteration_0/logits", Some(0)),
            ("step4/rank0/Module.a.forward.0.output.0", Some(4)),
            ("footstep9/x", None),
            ("logits", None),
        ] {
            assert_eq!(step_of(name), step, "{name}");
        }
    }
}
