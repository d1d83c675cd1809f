//! Factors that change together, and the arms that would part them.

use lockstep_traces::forms::{Arm, ArmTable};
use serde_json::{Map, Value};

use super::{Confounder, MissingControl, said};

/// The table as the question divides it.
#[derive(Debug)]
pub(super) struct Divided<'a> {
    pub(super) table: &'a ArmTable,
    /// Column of the factor asked for.
    pub(super) column: usize,
    pub(super) baseline: Value,
}

impl<'a> Divided<'a> {
    pub(super) fn level<'t>(&self, arm: &'t Arm, column: usize) -> &'t Value {
        arm.levels.get(column).unwrap_or(&Value::Null)
    }

    pub(super) fn own<'t>(&self, arm: &'t Arm) -> &'t Value {
        self.level(arm, self.column)
    }

    /// Arms of the baseline's level (`true`) or of the others.
    pub(super) fn side(&self, baseline: bool) -> impl Iterator<Item = &'a Arm> {
        let of = move |arm: &&Arm| (*self.own(arm) == self.baseline) == baseline;
        self.table.arms.iter().filter(of).collect::<Vec<_>>().into_iter()
    }

    /// The two differ in no other factor.
    pub(super) fn controlled(&self, left: &Arm, right: &Arm) -> bool {
        let columns = 0..self.table.factors.len();
        columns
            .filter(|column| *column != self.column)
            .all(|column| self.level(left, column) == self.level(right, column))
    }

    /// Levels of a column among arms, each once.
    fn levels(&self, arms: impl Iterator<Item = &'a Arm>, column: usize) -> Vec<Value> {
        let mut out: Vec<Value> = Vec::new();
        for arm in arms {
            let level = self.level(arm, column);
            if !out.contains(level) {
                out.push(level.clone());
            }
        }
        out
    }

    /// Factors that differ in some pair across the levels of the one asked for; those that always do first.
    pub(super) fn confounders(&self) -> Vec<Confounder> {
        let mut out = Vec::new();
        for (column, factor) in self.table.factors.iter().enumerate() {
            if column == self.column {
                continue;
            }
            let (mut pairs, mut differing) = (0, 0);
            for left in self.side(true) {
                for right in self.side(false) {
                    pairs += 1;
                    differing += usize::from(self.level(left, column) != self.level(right, column));
                }
            }
            if differing > 0 {
                out.push(Confounder {
                    factor: factor.clone(),
                    differing,
                    pairs,
                    always: differing == pairs,
                    levels_of_baseline: self.levels(self.side(true), column),
                    levels_of_others: self.levels(self.side(false), column),
                    part_of: None,
                });
            }
        }
        out.sort_by_key(|one| !one.always);
        let parts: Vec<Option<String>> =
            out.iter().map(|one| self.part_of(&one.factor, &out)).collect();
        for (one, part) in out.iter_mut().zip(parts) {
            one.part_of = part;
        }
        out
    }

    fn column(&self, factor: &str) -> Option<usize> {
        self.table.factors.iter().position(|name| name == factor)
    }

    /// A confounder that is everywhere, and whose level decides whether `factor` is there.
    fn part_of(&self, factor: &str, all: &[Confounder]) -> Option<String> {
        let own = self.column(factor)?;
        let absent = |arm: &Arm| self.level(arm, own).is_null();
        if !self.table.arms.iter().any(absent) {
            return None;
        }
        let decides = |other: &&Confounder| {
            let Some(column) = self.column(&other.factor).filter(|column| *column != own) else {
                return false;
            };
            let arms = &self.table.arms;
            arms.iter().all(|arm| !self.level(arm, column).is_null())
                && arms.iter().enumerate().all(|(at, left)| {
                    arms[at + 1..].iter().all(|right| {
                        self.level(left, column) != self.level(right, column)
                            || absent(left) == absent(right)
                    })
                })
        };
        all.iter().find(decides).map(|other| other.factor.clone())
    }

    /// Arms that would make controlled pairs for a level: each baseline arm with this level, each arm of this level with the baseline's.
    pub(super) fn missing(
        &self,
        levels: &[&Value],
        confounders: &[Confounder],
    ) -> Vec<MissingControl> {
        let mut out: Vec<(Vec<Value>, MissingControl)> = Vec::new();
        let mut want = |arm: &Arm, level: &Value| {
            let mut wanted = arm.levels.clone();
            if let Some(place) = wanted.get_mut(self.column) {
                *place = level.clone();
            }
            if self.table.arms.iter().any(|other| other.levels == wanted) {
                return;
            }
            match out.iter_mut().find(|(known, _)| *known == wanted) {
                Some((_, control)) => control.controls.push(arm.name.clone()),
                None => {
                    let control = self.control(&wanted, arm, confounders);
                    out.push((wanted, control));
                }
            }
        };
        for right in self.side(false).filter(|arm| levels.contains(&self.own(arm))) {
            want(right, &self.baseline);
        }
        for left in self.side(true) {
            for level in levels {
                want(left, level);
            }
        }
        out.into_iter().map(|(_, control)| control).collect()
    }

    fn control(&self, wanted: &[Value], from: &Arm, confounders: &[Confounder]) -> MissingControl {
        let named = self.table.factors.iter().zip(wanted).enumerate();
        let levels: Map<String, Value> = named
            .filter(|(column, (_, level))| *column == self.column || !level.is_null())
            .map(|(_, (factor, level))| (factor.clone(), level.clone()))
            .collect();
        let telling = |factor: &String| {
            confounders.iter().any(|one| one.factor == *factor && one.part_of.is_none())
        };
        let asked = self.table.factors.get(self.column);
        let mut words: Vec<String> = Vec::new();
        for (factor, level) in self.table.factors.iter().zip(wanted) {
            if Some(factor) == asked || telling(factor) {
                words.push(format!("{factor} = {}", said(level)));
            }
        }
        MissingControl { levels, words: words.join(", "), controls: vec![from.name.clone()] }
    }
}
