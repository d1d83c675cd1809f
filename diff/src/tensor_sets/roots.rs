//! Calls whose inputs agree and whose outputs do not: where an error starts, and not where it has been carried to.

use super::map::{NameMap, whole};
use super::report::{PairReport, Root, Status};

/// Inputs and outputs in the names of msProbe (`NAME.forward.input.0`) and of module hooks (`NAME-input.0`).
const KNOWN: [(&str, &str); 2] = [
    (
        r"(?<call>.+\.(?:forward|backward)(?:\.\d+)?)\.(?:input|input_args|input_kwargs|parameters)(?:\..+)?",
        r"(?<call>.+\.(?:forward|backward)(?:\.\d+)?)\.output(?:\..+)?",
    ),
    (r"(?<call>.+)-input(?:[.-].+)?", r"(?<call>.+)-output(?:[.-].+)?"),
];

/// Notes the role of each pair, and gives the roots in the order of execution. A call of which an input is among the `alone` is none:
/// what it was given is not known.
pub(super) fn find(
    pairs: &mut [PairReport],
    map: &NameMap,
    alone: &[&String],
) -> Result<Vec<Root>, String> {
    let declared = map.roles.iter().map(|roles| (roles.input.as_str(), roles.output.as_str()));
    let mut calls: Vec<(String, Vec<usize>, Vec<usize>)> = Vec::new();
    let mut unknown: Vec<String> = Vec::new();
    for (input, output) in declared.chain(KNOWN) {
        let (input, output) = (whole(input)?, whole(output)?);
        let call = |name: &&String| Some(input.captures(name)?.name("call")?.as_str().to_owned());
        unknown.extend(alone.iter().filter_map(call));
        for (at, pair) in pairs.iter_mut().enumerate().filter(|(_, pair)| pair.role.is_none()) {
            for (regex, role) in [(&input, "input"), (&output, "output")] {
                let Some(found) = regex.captures(&pair.name) else { continue };
                let call = found.name("call").map_or("", |call| call.as_str()).to_owned();
                pair.role = Some(role.to_owned());
                let slot = match calls.iter().position(|(known, ..)| *known == call) {
                    Some(slot) => slot,
                    None => {
                        calls.push((call, Vec::new(), Vec::new()));
                        calls.len() - 1
                    }
                };
                if let Some((_, inputs, outputs)) = calls.get_mut(slot) {
                    if role == "input" { inputs.push(at) } else { outputs.push(at) }
                }
                break;
            }
        }
    }
    let of = |at: &usize| pairs.get(*at);
    let agrees = |at: &usize| {
        of(at).is_some_and(|pair| {
            matches!(pair.status, Status::Identical | Status::EqualValues | Status::Within)
        })
    };
    let mut roots = Vec::new();
    for (call, inputs, outputs) in &calls {
        let failing: Vec<&PairReport> =
            outputs.iter().filter_map(of).filter(|pair| pair.status == Status::Diverged).collect();
        let Some(order) = failing.iter().map(|pair| pair.order).min() else { continue };
        if inputs.is_empty() || !inputs.iter().all(agrees) || unknown.contains(call) {
            continue;
        }
        roots.push(Root {
            call: call.clone(),
            order,
            inputs: inputs.iter().filter_map(of).map(|pair| pair.name.clone()).collect(),
            outputs: failing.iter().map(|pair| pair.name.clone()).collect(),
        });
    }
    roots.sort_by_key(|root| root.order);
    Ok(roots)
}
