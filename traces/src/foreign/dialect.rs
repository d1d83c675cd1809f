//! The kinds of foreign rows, told apart by their keys, and one row of any of them.

use super::number::Number;
use super::scan::{Cursor, Fault};

/// A kind of trace file. File names say nothing; the keys of the first row decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// TensorRT-Model-Connect's step trace: nine keys with `decoder_idx`, rows usually rounded up to a bucket.
    StepTrace,
    /// The same without `decoder_idx`: exact rows, nine digits; `compaction` (0-based index or null) where the run
    /// was compressed. Rows of a teacher-forced replay are the same, with `comp_before` and `comp_after`.
    PositionTrace,
    /// `position`, `token_id` (the token chosen), `rows_before` (own row included), `rows_after`, `top` (pairs).
    Neutral,
}

impl Dialect {
    /// Name as in the manifest's `producer.name`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::StepTrace => "trtmc",
            Self::PositionTrace => "position-trace",
            Self::Neutral => "neutral-trace",
        }
    }

    /// Keys that every row must have.
    const fn required(self) -> u32 {
        match self {
            Self::StepTrace => COMMON | 1 << DECODER,
            Self::PositionTrace => COMMON,
            Self::Neutral => {
                1 << POSITION | 1 << TOKEN | 1 << ROWS_BEFORE | 1 << ROWS_AFTER | 1 << TOP
            }
        }
    }

    /// The dialect whose keys the first row of a file has.
    pub(super) fn of(row: &RawRow) -> Result<Self, Fault> {
        let has = |bit: usize| row.seen & 1 << bit != 0;
        if has(POSITION_BEFORE) {
            Ok(if has(DECODER) { Self::StepTrace } else { Self::PositionTrace })
        } else if has(POSITION) && has(TOP) {
            Ok(Self::Neutral)
        } else {
            Err(Fault::bad(
                "no trace that is known here; rows have `position_before` (step trace) or `position` and `top`",
            ))
        }
    }
}

const NAMES: [&str; 13] = [
    "position_before",
    "token_id",
    "decoder_idx",
    "rows_before",
    "rows_after",
    "argmax_token",
    "argmax_logit",
    "top_ids",
    "top_logits",
    "position",
    "top",
    "compaction",
    "comp_after",
];
const POSITION_BEFORE: usize = 0;
const TOKEN: usize = 1;
const DECODER: usize = 2;
const ROWS_BEFORE: usize = 3;
const ROWS_AFTER: usize = 4;
const ARGMAX_TOKEN: usize = 5;
const ARGMAX_LOGIT: usize = 6;
const TOP_IDS: usize = 7;
const TOP_LOGITS: usize = 8;
const POSITION: usize = 9;
const TOP: usize = 10;
const COMPACTION: usize = 11;
const COMP_AFTER: usize = 12;
const COMMON: u32 = 1 << POSITION_BEFORE
    | 1 << TOKEN
    | 1 << ROWS_BEFORE
    | 1 << ROWS_AFTER
    | 1 << ARGMAX_TOKEN
    | 1 << ARGMAX_LOGIT
    | 1 << TOP_IDS
    | 1 << TOP_LOGITS;

/// One row as it stands in the file. Kept between lines, so that nothing is allocated per row.
#[derive(Debug, Default)]
pub(super) struct RawRow {
    seen: u32,
    pub(super) position: u32,
    pub(super) token: u32,
    pub(super) decoder: u32,
    pub(super) rows_before: u32,
    pub(super) rows_after: u32,
    pub(super) argmax: Option<(u32, f32)>,
    /// 0-based index, where the row has one.
    pub(super) compaction: Option<u32>,
    /// N after the step, where the row has `comp_after`.
    pub(super) absolute: Option<u32>,
    /// True where the row has the key `compaction`, null or not.
    pub(super) says_compaction: bool,
    pub(super) ids: Vec<u32>,
    pub(super) logits: Vec<Number>,
}

impl RawRow {
    /// Reads one line. Unknown keys are skipped.
    pub(super) fn parse(&mut self, line: &[u8]) -> Result<(), Fault> {
        self.seen = 0;
        self.argmax = None;
        self.compaction = None;
        self.absolute = None;
        self.ids.clear();
        self.logits.clear();
        let mut argmax = (0, 0.0);
        let mut cursor = Cursor::new(line);
        let mut next = 0;
        cursor.object(|key, cursor| {
            // Keys nearly always come in the order of the list.
            let named =
                |field: &usize| NAMES.get(*field).is_some_and(|name| name.as_bytes() == key);
            let Some(field) = Some(next).filter(named).or_else(|| (0..NAMES.len()).find(named))
            else {
                return cursor.skip();
            };
            next = field + 1;
            if self.seen & 1 << field != 0 {
                return Err(Fault::bad(format!("`{}` stands twice", NAMES[field])));
            }
            self.seen |= 1 << field;
            self.field(field, cursor, &mut argmax)
        })?;
        cursor.end()?;
        self.says_compaction = self.seen & 1 << COMPACTION != 0;
        if self.seen & 1 << ARGMAX_TOKEN != 0 {
            self.argmax = Some(argmax);
        }
        if self.ids.len() != self.logits.len() {
            return Err(Fault::bad(format!(
                "{} ids stand beside {} logits",
                self.ids.len(),
                self.logits.len()
            )));
        }
        if self.ids.is_empty() {
            return Err(Fault::bad("the list of largest logits is empty"));
        }
        Ok(())
    }

    fn field(
        &mut self,
        field: usize,
        cursor: &mut Cursor<'_>,
        argmax: &mut (u32, f32),
    ) -> Result<(), Fault> {
        let name = NAMES[field];
        match field {
            POSITION_BEFORE | POSITION => self.position = cursor.index(name)?,
            TOKEN => self.token = cursor.index(name)?,
            DECODER => self.decoder = cursor.index(name)?,
            ROWS_BEFORE => self.rows_before = cursor.index(name)?,
            ROWS_AFTER => self.rows_after = cursor.index(name)?,
            ARGMAX_TOKEN => argmax.0 = cursor.index(name)?,
            ARGMAX_LOGIT => argmax.1 = cursor.number()?.value,
            COMPACTION => self.compaction = cursor.optional_index(name)?,
            TOP_IDS => {
                let ids = &mut self.ids;
                cursor.array(|cursor| {
                    ids.push(cursor.index(name)?);
                    Ok(())
                })?;
            }
            TOP_LOGITS => {
                let logits = &mut self.logits;
                cursor.array(|cursor| {
                    logits.push(cursor.number()?);
                    Ok(())
                })?;
            }
            TOP => self.pairs(cursor)?,
            COMP_AFTER => self.absolute = absolute_position(cursor)?,
            _ => cursor.skip()?,
        }
        Ok(())
    }

    fn pairs(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        cursor.array(|cursor| {
            let mut place = 0;
            cursor.array(|cursor| {
                match place {
                    0 => self.ids.push(cursor.index("id in `top`")?),
                    1 => self.logits.push(cursor.number()?),
                    _ => return Err(Fault::bad("an entry of `top` has more than two values")),
                }
                place += 1;
                Ok(())
            })?;
            if place == 2 {
                Ok(())
            } else {
                Err(Fault::bad("an entry of `top` has fewer than two values"))
            }
        })
    }

    /// A key that rows of `dialect` must have and this one has not.
    pub(super) fn missing(&self, dialect: Dialect) -> Option<&'static str> {
        let missing = dialect.required() & !self.seen;
        NAMES.get(missing.trailing_zeros() as usize).copied()
    }
}

/// `absolute_position` of a `comp_after` object (null where the replay has no cache policy).
fn absolute_position(cursor: &mut Cursor<'_>) -> Result<Option<u32>, Fault> {
    if cursor.peek()? == b'n' {
        cursor.skip()?;
        return Ok(None);
    }
    let mut position = None;
    cursor.object(|key, cursor| {
        if key == b"absolute_position" {
            position = cursor.optional_index("absolute_position")?;
            return Ok(());
        }
        cursor.skip()
    })?;
    Ok(position)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NINE: &str = r#"{"position_before":319,"token_id":220,"decoder_idx":1,"rows_before":320,"rows_after":256,"argmax_token":16,"argmax_logit":24.1094,"top_ids":[16,17],"top_logits":[24.1094,23.4375]}"#;

    fn parse(line: &str) -> Result<RawRow, Fault> {
        let mut row = RawRow::default();
        row.parse(line.as_bytes()).map(|()| row)
    }

    #[test]
    fn keys_tell_the_dialect() {
        let dialect = |line: &str| Dialect::of(&parse(line).unwrap());
        assert_eq!(dialect(NINE), Ok(Dialect::StepTrace));
        assert_eq!(dialect(&NINE.replace("\"decoder_idx\":1,", "")), Ok(Dialect::PositionTrace));
        let neutral = r#"{"position":4,"token_id":0,"rows_before":5,"rows_after":5,"top":[[0,NaN],[1,null]]}"#;
        assert_eq!(dialect(neutral), Ok(Dialect::Neutral));
        assert!(dialect(r#"{"step":1,"top":[[1,2]]}"#).is_err());
    }

    #[test]
    fn a_row_has_what_its_line_says() {
        let row = parse(NINE).unwrap();
        assert_eq!((row.position, row.token, row.decoder), (319, 220, 1));
        assert_eq!((row.rows_before, row.rows_after, row.argmax), (320, 256, Some((16, 24.1094))));
        assert_eq!(row.ids, [16, 17]);
        assert_eq!(row.logits[1].value.to_bits(), 23.4375_f32.to_bits());
        assert_eq!(row.missing(Dialect::StepTrace), None);
        assert_eq!(row.missing(Dialect::Neutral), Some("position"));
    }

    #[test]
    fn replay_rows_give_their_absolute_position() {
        let line = NINE.replace(
            "\"decoder_idx\":1",
            "\"comp_before\":{\"absolute_position\":319,\"prefix_length\":41},\"comp_after\":{\"absolute_position\":320,\"cache_positions_len\":256,\"prefix_length\":41}",
        );
        assert_eq!(parse(&line).unwrap().absolute, Some(320));
    }

    #[test]
    fn contradictions_within_a_row_are_bad() {
        for (from, to) in [
            ("[16,17]", "[16]"),
            ("\"token_id\":220", "\"token_id\":-1"),
            ("\"token_id\":220", "\"token_id\":1,\"token_id\":1"),
            ("[16,17],\"top_logits\":[24.1094,23.4375]", "[],\"top_logits\":[]"),
        ] {
            assert!(matches!(parse(&NINE.replace(from, to)), Err(Fault::Bad(_))), "{to}");
        }
    }
}
