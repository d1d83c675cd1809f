//! Rules on the text of a completion that end it.

use serde_json::Value;

use super::boxed_answer;
use crate::RuntimeError;
use crate::tokenize::Tokenizer;

/// Name of the rule of [`StopRules::on_answer`] in manifests.
pub const ANSWER_RULE: &str = "balanced \\boxed{...}, or `Final answer:` followed by text";

/// Tokens beyond a stop string's own bytes that its window covers: special tokens have no text.
const SLACK: usize = 8;

/// When the text so far ends a sample. The token that completes the rule is kept; it is never fed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRules {
    /// Texts; looked for after every token.
    pub strings: Vec<String>,
    /// An answer is there: a `\boxed{...}` whose braces are balanced, or `Final answer:` (case as here) followed by
    /// something that is not blank.
    pub on_answer: bool,
    /// The answer is looked for whenever the number of generated tokens is a multiple of this, so that a sample runs
    /// on for at most `check_interval - 1` tokens.
    pub check_interval: usize,
}

impl Default for StopRules {
    fn default() -> Self {
        Self { strings: Vec::new(), on_answer: false, check_interval: 16 }
    }
}

impl StopRules {
    /// Can these rules be followed?
    pub(super) fn check(&self, tokenizer: Option<&Tokenizer>) -> Result<(), RuntimeError> {
        let fault = |what: &str| RuntimeError::Option { name: "stop", what: what.to_owned() };
        if self.check_interval == 0 {
            return Err(fault("the interval between checks must be at least 1"));
        }
        if self.strings.iter().any(String::is_empty) {
            return Err(fault("an empty stop string would end every sample at once"));
        }
        let asks = self.on_answer || !self.strings.is_empty();
        if asks && tokenizer.is_none() {
            return Err(fault("rules on the text need the model's tokenizer.json"));
        }
        Ok(())
    }

    /// Do they end a sample that has generated these tokens?
    pub(super) fn fires(
        &self,
        tokenizer: Option<&Tokenizer>,
        generated: &[u32],
    ) -> Result<bool, RuntimeError> {
        let Some(tokenizer) = tokenizer else { return Ok(false) };
        if let Some(longest) = self.strings.iter().map(String::len).max() {
            // A token has at least one byte, so an end of the text that holds the string lies in these.
            let start = generated.len().saturating_sub(longest + SLACK);
            let tail = tokenizer.decode(generated.get(start..).unwrap_or_default())?;
            if self.strings.iter().any(|string| tail.contains(string)) {
                return Ok(true);
            }
        }
        if self.on_answer && generated.len().is_multiple_of(self.check_interval) {
            return Ok(answered(&tokenizer.decode(generated)?));
        }
        Ok(false)
    }

    /// Which rule a finished text fulfils, in words: the first stop string that is in it, or the answer rule.
    #[must_use]
    pub fn fulfilled(&self, text: &str) -> Option<String> {
        let string = self.strings.iter().find(|string| text.contains(*string));
        let string = string.map(|string| format!("string {string:?}"));
        string.or_else(|| (self.on_answer && answered(text)).then(|| "answer".to_owned()))
    }

    /// Keys and values for the manifest.
    pub(super) fn config(&self) -> Vec<(&'static str, Value)> {
        let rule = if self.on_answer { "answer" } else { "none" };
        let mut all = vec![
            ("stop.strings", Value::from(self.strings.clone())),
            ("stop.rule", Value::from(rule)),
        ];
        if self.on_answer {
            all.push(("stop.interval", Value::from(self.check_interval)));
            all.push(("stop.answer_rule", Value::from(ANSWER_RULE)));
        }
        all
    }
}

fn answered(text: &str) -> bool {
    const FINAL: &str = "Final answer:";
    let said = |at: usize| text.get(at + FINAL.len()..).is_some_and(|rest| !rest.trim().is_empty());
    boxed_answer(text).is_some() || text.find(FINAL).is_some_and(said)
}

#[cfg(test)]
mod tests {
    use lockstep_testkit as kit;
    use lockstep_traces::FinishReason;

    use super::super::golden::{ledger, plan, request, run};
    use super::*;
    use crate::RunOptions;

    fn ids(text: &str) -> (Tokenizer, Vec<u32>) {
        let tokenizer = Tokenizer::read(&kit::ledger()).unwrap().unwrap();
        let ids = tokenizer.encode_as_is(text).unwrap();
        (tokenizer, ids)
    }

    #[test]
    fn an_answer_is_a_closed_box_or_a_final_answer_with_content() {
        for (text, expected) in [
            (r"so \boxed{12}", true),
            (r"so \boxed{\frac{1}{2}", false),
            (r"so \boxed{\frac{1}{2}}", true),
            ("Final answer: ", false),
            ("Final answer: 7", true),
            ("final answer: 7", false),
            ("12", false),
        ] {
            assert_eq!(answered(text), expected, "{text}");
        }
    }

    #[test]
    fn the_answer_is_looked_for_at_multiples_of_the_interval_only() {
        let (tokenizer, ids) = ids(r"L1 5 \boxed{ 7 }");
        let rules = |interval| StopRules {
            on_answer: true,
            check_interval: interval,
            ..StopRules::default()
        };
        assert!(rules(1).fires(Some(&tokenizer), &ids).unwrap());
        assert!(rules(ids.len()).fires(Some(&tokenizer), &ids).unwrap());
        assert!(!rules(ids.len() + 1).fires(Some(&tokenizer), &ids).unwrap());
        assert!(!rules(1).fires(Some(&tokenizer), &ids[..ids.len() - 1]).unwrap());
        assert!(!StopRules::default().fires(Some(&tokenizer), &ids).unwrap());
    }

    #[test]
    fn a_stop_string_is_found_across_tokens() {
        let (tokenizer, ids) = ids("L1 5 v1 5 L2 6");
        let rules =
            |string: &str| StopRules { strings: vec![string.to_owned()], ..StopRules::default() };
        assert!(rules("L2 6").fires(Some(&tokenizer), &ids).unwrap());
        assert!(!rules("L2 6").fires(Some(&tokenizer), &ids[..ids.len() - 1]).unwrap());
        assert_eq!(rules("v1").fulfilled("L1 5 v1"), Some("string \"v1\"".to_owned()));
        assert_eq!(rules("v2").fulfilled("L1 5 v1"), None);
    }

    #[test]
    fn rules_that_cannot_be_followed_are_refused() {
        let (tokenizer, _) = ids("L1");
        let refused = |rules: StopRules, tokenizer: Option<&Tokenizer>| {
            rules.check(tokenizer).unwrap_err().to_string()
        };
        let asks = StopRules { on_answer: true, ..StopRules::default() };
        assert!(refused(asks.clone(), None).contains("tokenizer.json"));
        assert!(
            refused(StopRules { check_interval: 0, ..asks }, Some(&tokenizer)).contains("interval")
        );
        let empty = StopRules { strings: vec![String::new()], ..StopRules::default() };
        assert!(refused(empty, Some(&tokenizer)).contains("empty"));
    }

    #[test]
    fn a_run_stops_on_its_answer_and_overshoots_by_less_than_the_interval() {
        let engine = ledger(lockstep_traces::DType::F32);
        let task = kit::task("ledger_01");
        // The exact completion ends `\boxed{ N } <eos>`: the box closes one token before the end.
        let closes = task.completion_ids.len() - 1;
        let finish = |stop: StopRules| {
            let options = RunOptions {
                stop,
                max_new_tokens: 400,
                stop_ids: Some(Vec::new()),
                ..RunOptions::default()
            };
            let mut sink = run(&engine, &[request(&task)], &options, plan());
            let row = sink.samples.remove(0);
            // A token that ends a sample is never fed.
            assert_eq!(sink.steps.len(), task.prompt_ids.len() + row.generated_ids.len() - 1);
            (row.finish, row.generated_ids.len())
        };
        let on_answer =
            |check_interval| StopRules { on_answer: true, check_interval, ..StopRules::default() };
        assert_eq!(finish(on_answer(1)), (FinishReason::Stop, closes));
        let (reason, length) = finish(on_answer(16));
        assert_eq!((reason, length), (FinishReason::Stop, closes.next_multiple_of(16)));
        let first = StopRules { strings: vec!["L470".to_owned()], ..StopRules::default() };
        // `L469 93 v469 93 L470`
        assert_eq!(finish(first), (FinishReason::Stop, 5));
    }
}
