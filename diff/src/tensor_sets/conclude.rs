//! What a comparison comes to: raw files that do not fit, names that may be alone, the verdict, the limits.

use lockstep_traces::Verdict;
use lockstep_traces::tensor_files::{Element, Misfit, PlainTensor, TensorSet};

use super::compare::SetOptions;
use super::map::whole;
use super::measure::{Wish, measure};
use super::report::{PairReport, SetsReport, Status, Unfit};
use super::view::View;

/// Raw files that do not fit: what each fitting type would give against the other side's tensor.
pub(super) fn unfit(set: &TensorSet, side: &str, others: &[PlainTensor]) -> Vec<Unfit> {
    let lone = match others {
        [one] if set.misfits.len() == 1 && set.tensors.is_empty() => Some(one),
        _ => None,
    };
    let one = |misfit: &Misfit| {
        let other = others.iter().find(|tensor| tensor.name == misfit.name).or(lone);
        let equal = |element: Element| -> Option<u64> {
            let tensor = misfit.read_as(element).ok()?;
            let (left, right) = (View::of(other?), View::of(&tensor));
            (left.shape() == right.shape()).then(|| measure(&left, &right, Wish::default()).0.equal)
        };
        let fits: Vec<(String, Option<u64>)> = misfit
            .fits
            .iter()
            .map(|element| (element.name().to_owned(), equal(*element)))
            .collect();
        let declared = &misfit.declared;
        let elements: usize = declared.shape.iter().product();
        let shown: Vec<String> = fits
            .iter()
            .map(|(name, equal)| match equal {
                Some(equal) => format!("{name} ({equal} of {elements} values equal)"),
                None => name.clone(),
            })
            .collect();
        let need = elements * declared.element.size() + declared.skip;
        let fitting = if shown.is_empty() {
            "no type fits that shape".to_owned()
        } else {
            format!("that shape fits {}", shown.join(", "))
        };
        let why = format!(
            "{}: declared {} {:?} needs {need} bytes and the file has {}; {fitting}; nothing of it was compared",
            misfit.path.display(),
            declared.element.name(),
            declared.shape,
            misfit.bytes
        );
        Unfit { name: misfit.name.clone(), side: side.to_owned(), why, fits }
    };
    set.misfits.iter().map(one).collect()
}

/// Moves names that may be alone to `skipped`.
pub(super) fn skip(report: &mut SetsReport, options: &SetOptions<'_>) -> Result<(), String> {
    let patterns = options.allow_skip.iter().chain(&options.map.allow_skip);
    let patterns = patterns.map(|pattern| whole(pattern)).collect::<Result<Vec<_>, _>>()?;
    let allowed = |name: &String| patterns.iter().any(|regex| regex.is_match(name));
    for side in [&mut report.left_only, &mut report.right_only] {
        let (may, must): (Vec<_>, Vec<_>) = side.drain(..).partition(allowed);
        report.skipped.extend(may);
        *side = must;
    }
    Ok(())
}

/// Verdict, summary and limits.
pub(super) fn conclude(report: &mut SetsReport, options: &SetOptions<'_>, left_out: usize) {
    let count = |status: Status| report.pairs.iter().filter(|pair| pair.status == status).count();
    let (identical, equal, within) =
        (count(Status::Identical), count(Status::EqualValues), count(Status::Within));
    let (diverged, incomparable) = (count(Status::Diverged), count(Status::Incomparable));
    let compared = report
        .pairs
        .iter()
        .any(|pair| pair.figures.elements > 0 && pair.status != Status::Incomparable);
    let failed =
        |pair: &&PairReport| matches!(pair.status, Status::Diverged | Status::Incomparable);
    report.failed = report.pairs.iter().filter(failed).map(|pair| pair.name.clone()).collect();
    let first = report.pairs.iter().find(|pair| pair.status == Status::Diverged);
    report.first = first.map(|pair| pair.name.clone());
    let alone = report.left_only.len() + report.right_only.len();
    let unknown = |why: String| Verdict::Incomparable { why };
    let mut verdict = if within > 0 { Verdict::WithinNoise } else { Verdict::Identical };
    if alone > 0 {
        verdict = verdict.worst(unknown(format!("{alone} tensors have no partner")));
    }
    if incomparable > 0 {
        verdict = verdict.worst(unknown(format!("{incomparable} pairs cannot be compared")));
    }
    if !report.unfit.is_empty() {
        verdict = verdict.worst(unknown(format!(
            "{} raw files do not fit what is declared of them",
            report.unfit.len()
        )));
    }
    if !compared {
        verdict = verdict.worst(unknown("nothing was compared".to_owned()));
    }
    if diverged > 0 {
        verdict = Verdict::Diverged;
    }
    let mut parts = vec![format!("{} pairs: {identical} identical", report.pairs.len())];
    for (n, what) in [
        (equal, "of equal values"),
        (within, "within what is allowed"),
        (diverged, "diverged"),
        (incomparable, "incomparable"),
        (alone, "tensors without a partner"),
        (report.skipped.len(), "skipped as allowed"),
    ] {
        if n > 0 {
            parts.push(format!("{n} {what}"));
        }
    }
    report.summary = parts.join(", ");
    if let Some(first) = &report.first {
        report.summary = format!("{}; first by {}: {first}", report.summary, report.order);
    }
    if let Some(root) = report.roots.first() {
        report.summary = format!("{}; first with equal inputs: {}", report.summary, root.call);
    }
    report.verdict = verdict;
    limits(report, options, left_out, equal);
}

fn limits(report: &mut SetsReport, options: &SetOptions<'_>, left_out: usize, equal: usize) {
    let mut limits = Vec::new();
    if report.order == "names" && report.pairs.len() > 1 {
        limits.push("the order is that of the names; declare `order` in the map where it is not that of execution".to_owned());
    }
    if left_out > 0 {
        limits.push(format!(
            "{left_out} tensors lie outside --only or --layers and were not looked at"
        ));
    }
    if equal > 0 {
        limits.push(format!(
            "{equal} pairs have two element types: their values are equal, their bits cannot be"
        ));
    }
    if report.first.is_some()
        && report.roots.is_empty()
        && report.pairs.iter().all(|pair| pair.role.is_none())
    {
        limits.push("no names say which tensors are inputs and which outputs of one call: where the error starts is not known".to_owned());
    }
    if options.control.is_some() {
        let without = report.pairs.iter().filter(|pair| {
            pair.control.is_none() && matches!(pair.status, Status::Within | Status::Diverged)
        });
        let without = without.count();
        if without > 0 {
            limits.push(format!("{without} pairs that differ have no control of their name and shape, or non-finite values: not judged by ratio"));
        }
    }
    report.limits = limits;
}
