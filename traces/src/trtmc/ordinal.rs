//! Which compaction a keep dump is of. The index in the file is one too high unless the engine profiled, and the
//! schedule tells as well: compaction k happens at N = first + (k - 1) * divide.

use super::keep::KeepDump;

/// The ordinal and what speaks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ordinal {
    /// 1-based.
    pub value: u32,
    /// Divide length in force: as given, else the rows that this compaction dropped.
    pub divide_length: Option<u32>,
    /// Hazards and contradictions, one line each.
    pub remarks: Vec<String>,
}

/// Recomputes the ordinal of `dump`. `divide` is not in the file; without it the rows dropped are taken, which is
/// the divide length unless the prompt overflowed.
#[must_use]
pub fn true_ordinal(dump: &KeepDump, divide: Option<u32>) -> Ordinal {
    let mut remarks = Vec::new();
    let dropped = dump.cache_length_before.saturating_sub(dump.keep_count);
    let divide_length = divide.or((dropped > 0).then_some(dropped));
    if divide.is_none() {
        remarks.push(match divide_length {
            Some(length) => format!(
                "the file does not tell the divide length; {length}, the rows dropped, is taken"
            ),
            None => "the file does not tell the divide length, and no row was dropped".to_owned(),
        });
    }
    let labelled = match (&dump.profile, dump.compaction_index) {
        (Some(_), index) => index,
        (None, index) => index.saturating_sub(1),
    };
    let scheduled = divide_length.and_then(|length| by_schedule(dump, length));
    let value = scheduled.unwrap_or(labelled).max(1);
    if scheduled.is_none() {
        remarks.push(format!(
            "absolute_position {} lies on no compaction of the schedule; the ordinal rests on compaction_index",
            dump.absolute_position
        ));
    } else if labelled != value {
        remarks.push(format!(
            "compaction_index {} (profile {}) means compaction {labelled}, the schedule says {value}",
            dump.compaction_index,
            if dump.profile.is_some() { "on" } else { "off" }
        ));
    }
    if dump.compaction_index != value {
        remarks.push(format!(
            "compaction_index {} is shifted: this is compaction {value}",
            dump.compaction_index
        ));
    }
    Ordinal { value, divide_length, remarks }
}

/// A prompt that reaches the trigger compacts at its first decode row; else the trigger itself is the first.
fn by_schedule(dump: &KeepDump, divide: u32) -> Option<u32> {
    let prompt = dump.planned_prompt_length;
    let uncounted = if dump.count_prompt_tokens { 0 } else { prompt };
    let trigger = dump.kv_budget.checked_add(divide)?.checked_add(uncounted)?;
    let first = if prompt >= trigger { prompt.checked_add(1)? } else { trigger };
    let beyond = dump.absolute_position.checked_sub(first)?;
    (divide > 0 && beyond.is_multiple_of(divide)).then(|| beyond / divide + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trtmc::Profile;
    use crate::trtmc::keep::tests::example;

    #[test]
    fn the_shifted_index_of_an_unprofiled_dump_is_recomputed_and_said() {
        let ordinal = true_ordinal(&example(), Some(4));
        assert_eq!(ordinal.value, 1);
        assert_eq!(ordinal.remarks, ["compaction_index 2 is shifted: this is compaction 1"]);
        let third = KeepDump { compaction_index: 4, absolute_position: 20, ..example() };
        assert_eq!(true_ordinal(&third, Some(4)).value, 3);
    }

    #[test]
    fn a_profiled_dump_has_a_true_index() {
        let dump = KeepDump { compaction_index: 1, profile: Some(Profile::default()), ..example() };
        let ordinal = true_ordinal(&dump, Some(4));
        assert_eq!((ordinal.value, ordinal.remarks.len()), (1, 0));
    }

    #[test]
    fn an_index_that_contradicts_the_schedule_is_said() {
        let dump = KeepDump { compaction_index: 5, ..example() };
        let ordinal = true_ordinal(&dump, Some(4));
        assert_eq!(ordinal.value, 1);
        assert!(ordinal.remarks.iter().any(|remark| remark.contains("the schedule says 1")));
    }

    #[test]
    fn a_position_off_the_schedule_leaves_the_index_less_one() {
        let dump = KeepDump { compaction_index: 3, absolute_position: 15, ..example() };
        let ordinal = true_ordinal(&dump, Some(4));
        assert_eq!(ordinal.value, 2);
        assert!(ordinal.remarks[0].contains("on no compaction of the schedule"));
    }

    #[test]
    fn an_unknown_divide_length_is_taken_from_the_rows_dropped() {
        let ordinal = true_ordinal(&example(), None);
        assert_eq!((ordinal.value, ordinal.divide_length), (1, Some(4)));
        assert!(ordinal.remarks[0].contains("4, the rows dropped"));
    }

    #[test]
    fn an_uncounted_prompt_and_an_overflowing_one_move_the_first_compaction() {
        let uncounted = KeepDump { count_prompt_tokens: false, absolute_position: 15, ..example() };
        assert_eq!(true_ordinal(&uncounted, Some(4)).value, 1);
        let overflow = KeepDump { planned_prompt_length: 40, absolute_position: 45, ..example() };
        assert_eq!(true_ordinal(&overflow, Some(4)).value, 2);
    }
}
