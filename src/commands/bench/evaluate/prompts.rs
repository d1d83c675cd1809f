//! Dataset rows become requests: instruction, chat template, token ids, seed index.

use std::path::Path;

use anyhow::Context as _;
use lockstep_runtime::chat::{ChatFlags, ChatTemplate, SpecialTokens};
use lockstep_runtime::engine::{Engine, Request};
use lockstep_runtime::tokenize::Tokenizer;
use lockstep_traces::Manifest;
use lockstep_traces::dataset::{Dataset, DatasetRow, Form, Message, Prompt, Taken};
use serde::{Deserialize, Serialize};

use crate::cli::PromptArgs;
use crate::exit::{Status, usage};

/// What model cards of the Qwen family ask to be put behind a mathematical question.
const INSTRUCTION: &str = "Please reason step by step, and put your final answer within \\boxed{}.";

/// How prompts were made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PromptInfo {
    /// File of the chat template, or `none`.
    pub(super) template: String,
    pub(super) template_sha256: Option<String>,
    pub(super) add_generation_prompt: Option<bool>,
    pub(super) enable_thinking: Option<bool>,
    /// Text put behind bare questions.
    pub(super) instruction: Option<String>,
    /// Rows that the template was applied to.
    pub(super) templated: usize,
    /// Samples whose prompt begins with two beginning-of-sequence tokens.
    pub(super) doubled_bos: Vec<String>,
}

/// Requests in dataset order.
#[derive(Debug)]
pub(super) struct Prompts {
    pub(super) requests: Vec<Request>,
    /// Index in the dataset of each request.
    pub(super) indexes: Vec<u64>,
    pub(super) info: PromptInfo,
}

impl Prompts {
    pub(super) fn of(
        dataset: &Dataset,
        taken: &Taken,
        (engine, model): (&Engine, &Path),
        args: &PromptArgs,
    ) -> anyhow::Result<Self> {
        let maker = Maker {
            tokenizer: engine.tokenizer(),
            template: template(args, model)?,
            flags: ChatFlags {
                add_generation_prompt: !args.no_generation_prompt,
                enable_thinking: args.enable_thinking,
            },
            instruction: instruction(args, dataset.form),
            // The text of such a log is what was put to a model.
            final_text: dataset.form == Form::LmEval && args.chat_template == "auto",
        };
        let bos = bos(engine.tokenizer(), model)?;
        let (mut requests, mut indexes, mut templated) = (Vec::new(), Vec::new(), 0);
        let mut doubled_bos = Vec::new();
        for row in taken.rows.iter().filter_map(|place| dataset.rows.get(*place)) {
            let place =
                || format!("{}:{}: sample `{}`", dataset.path.display(), row.line, row.sample_id);
            let (ids, text, through) = maker.ids(row).map_err(|error| {
                let text = format!("{}: {error:#}", place());
                if crate::exit::status_of(&error) == Status::Usage {
                    usage(text)
                } else {
                    anyhow::anyhow!(text)
                }
            })?;
            templated += usize::from(through);
            if bos.is_some_and(|bos| ids.starts_with(&[bos, bos])) {
                doubled_bos.push(row.sample_id.clone());
            }
            indexes.push(row.index);
            requests.push(Request {
                sample_id: row.sample_id.clone(),
                prompt_ids: ids,
                prompt_text: text,
                gold: row.gold.clone(),
                seed_index: Some(row.effective_index()),
            });
        }
        let applies = dataset.rows.iter().any(|row| maker.applies(row));
        let info = maker.info(applies, templated, doubled_bos);
        Ok(Self { requests, indexes, info })
    }

    /// What a reader of the results must know.
    pub(super) fn notes(&self) -> Vec<String> {
        let doubled = &self.info.doubled_bos;
        doubled
            .first()
            .map(|first| format!("{} prompts begin with two beginning-of-sequence tokens, `{first}` first: template and tokenizer both add one", doubled.len()))
            .into_iter()
            .collect()
    }

    /// Records how prompts were made and where rows lie.
    pub(super) fn describe(
        &self,
        dataset: &Dataset,
        args: &PromptArgs,
        manifest: &mut Manifest,
    ) -> anyhow::Result<()> {
        let info = &self.info;
        let given = |given: bool| if given { "flag" } else { "default" };
        let asked = given(args.chat_template != "auto");
        manifest.set("prompt.template", info.template.clone(), asked);
        manifest.set("prompt.template_sha256", info.template_sha256.clone(), asked);
        let opening = given(args.no_generation_prompt);
        manifest.set("prompt.add_generation_prompt", info.add_generation_prompt, opening);
        let thinking = given(args.enable_thinking.is_some());
        manifest.set("prompt.enable_thinking", info.enable_thinking, thinking);
        let instruction = given(args.instruction.is_some());
        manifest.set("prompt.instruction", info.instruction.clone(), instruction);
        manifest.set("dataset.sha256", dataset.sha256.clone(), "file");
        manifest.set("dataset.form", dataset.form.name(), "file");
        manifest.set("dataset.row_index", serde_json::to_value(&self.indexes)?, "file");
        let ids: Vec<&str> =
            self.requests.iter().map(|request| request.sample_id.as_str()).collect();
        manifest.set("run.samples", ids, "flag");
        manifest.remarks.extend(self.notes());
        Ok(())
    }
}

/// Makes token ids of rows.
struct Maker<'a> {
    tokenizer: Option<&'a Tokenizer>,
    template: Option<ChatTemplate>,
    flags: ChatFlags,
    instruction: Option<String>,
    final_text: bool,
}

impl Maker<'_> {
    /// Ids, text where there is one, and whether it went through the template.
    fn ids(&self, row: &DatasetRow) -> anyhow::Result<(Vec<u32>, Option<String>, bool)> {
        let user = |content: String| vec![Message { role: "user".to_owned(), content }];
        let turns = match &row.prompt {
            Prompt::Ids { ids, text } => return Ok((ids.clone(), text.clone(), false)),
            Prompt::Text(text) if self.template.is_none() || self.final_text => {
                return self.plain(text.clone());
            }
            Prompt::Question(text) if self.template.is_none() => {
                return self.plain(self.asked(text));
            }
            Prompt::Text(text) => user(text.clone()),
            Prompt::Question(text) => user(self.asked(text)),
            Prompt::Messages(turns) => turns.clone(),
        };
        let Some(template) = &self.template else {
            return Err(usage("a conversation needs a chat template; give --chat-template FILE"));
        };
        let text = template.render(&turns, self.flags)?;
        let ids = self.tokenizer()?.encode_as_is(&text)?;
        Ok((ids, Some(text), true))
    }

    fn plain(&self, text: String) -> anyhow::Result<(Vec<u32>, Option<String>, bool)> {
        Ok((self.tokenizer()?.encode(&text)?, Some(text), false))
    }

    fn asked(&self, question: &str) -> String {
        match &self.instruction {
            Some(instruction) => format!("{question}\n\n{instruction}"),
            None => question.to_owned(),
        }
    }

    fn tokenizer(&self) -> anyhow::Result<&Tokenizer> {
        self.tokenizer
            .context("the model folder has no tokenizer.json; give rows with `prompt_ids`")
    }

    /// Does the template apply to rows like this one?
    fn applies(&self, row: &DatasetRow) -> bool {
        let final_text = self.final_text && matches!(row.prompt, Prompt::Text(_));
        self.template.is_some() && !final_text && !matches!(row.prompt, Prompt::Ids { .. })
    }

    /// `applies`: to any row of the dataset, whatever the shard.
    fn info(self, applies: bool, templated: usize, doubled_bos: Vec<String>) -> PromptInfo {
        let template = self.template.filter(|_| applies);
        let flags = template.as_ref().map(|_| self.flags);
        PromptInfo {
            template: template.as_ref().map_or("none", |chat| chat.source.as_str()).to_owned(),
            template_sha256: template.as_ref().map(ChatTemplate::sha256),
            add_generation_prompt: flags.map(|flags| flags.add_generation_prompt),
            enable_thinking: flags.and_then(|flags| flags.enable_thinking),
            instruction: self.instruction,
            templated,
            doubled_bos,
        }
    }
}

fn template(args: &PromptArgs, model: &Path) -> anyhow::Result<Option<ChatTemplate>> {
    match args.chat_template.as_str() {
        "none" => Ok(None),
        "auto" => Ok(ChatTemplate::read(model)?),
        "model" => ChatTemplate::read(model)?
            .map(Some)
            .ok_or_else(|| usage(format!("--chat-template model: {} has none", model.display()))),
        file => Ok(Some(ChatTemplate::from_file(Path::new(file), model)?)),
    }
}

fn instruction(args: &PromptArgs, form: Form) -> Option<String> {
    let bare = matches!(form, Form::Gsm8k | Form::Question | Form::Problem | Form::LmEval);
    match args.instruction.as_deref() {
        Some("none") => None,
        Some(text) => Some(text.to_owned()),
        None => bare.then(|| INSTRUCTION.to_owned()),
    }
}

/// The beginning-of-sequence id: the tokenizer configuration's token, else the one of `config.json`.
fn bos(tokenizer: Option<&Tokenizer>, model: &Path) -> anyhow::Result<Option<u32>> {
    let named = SpecialTokens::read(model)?.bos;
    if let Some(id) = named.and_then(|token| tokenizer?.id(&token)) {
        return Ok(Some(id));
    }
    let path = model.join("config.json");
    let text =
        std::fs::read(&path).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    let config: serde_json::Value = serde_json::from_slice(&text)?;
    let id = config.get("bos_token_id").and_then(serde_json::Value::as_u64);
    Ok(id.and_then(|id| u32::try_from(id).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_runtime::engine::LoadOptions;
    use lockstep_traces::dataset::Selection;

    const CHAT: &str = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %} ? Answer:{% endif %}";

    fn args(template: &str) -> PromptArgs {
        PromptArgs {
            chat_template: template.to_owned(),
            enable_thinking: None,
            no_generation_prompt: false,
            instruction: None,
        }
    }

    fn made(rows: &str, args: &PromptArgs) -> anyhow::Result<Prompts> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        std::fs::write(&path, rows).unwrap();
        let template = dir.path().join("chat.jinja");
        std::fs::write(&template, CHAT).unwrap();
        let mut args = PromptArgs {
            chat_template: args.chat_template.clone(),
            instruction: args.instruction.clone(),
            ..*args
        };
        if args.chat_template == "file" {
            args.chat_template = template.display().to_string();
        }
        let model = lockstep_testkit::ledger();
        let engine = Engine::load(&model, &LoadOptions::default()).unwrap();
        let dataset = Dataset::read(&path).unwrap();
        let taken = dataset.take(&Selection::default()).unwrap();
        Prompts::of(&dataset, &taken, (&engine, &model), &args)
    }

    #[test]
    fn text_ids_and_conversations_come_to_the_ids_of_the_golden_prompt() {
        let task = lockstep_testkit::task("ledger_01");
        let inner = task.prompt.strip_prefix("<bos> ").unwrap().strip_suffix(" ? Answer:").unwrap();
        let rows = format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":\"<bos> {inner}\"}}],\"seed_index\":5}}"
        );
        let prompts = made(&rows, &args("file")).unwrap();
        assert_eq!(prompts.requests[0].prompt_ids, task.prompt_ids);
        assert_eq!(prompts.requests[0].seed_index, Some(5));
        assert_eq!(prompts.info.template, "chat.jinja");
        assert_eq!(
            prompts.info.template_sha256,
            Some(lockstep_traces::hash::sha256_hex(CHAT.as_bytes()))
        );
        assert_eq!((prompts.info.templated, prompts.info.add_generation_prompt), (1, Some(true)));
        let plain = format!("{{\"prompt\":\"{}\"}}", task.prompt);
        let prompts = made(&plain, &args("auto")).unwrap();
        assert_eq!(prompts.requests[0].prompt_ids, task.prompt_ids);
        assert_eq!((prompts.info.template.as_str(), prompts.info.templated), ("none", 0));
        let bare = PromptArgs { no_generation_prompt: true, ..args("file") };
        let prompts = made(&rows, &bare).unwrap();
        assert_eq!(prompts.requests[0].prompt_ids, task.prompt_ids[..task.prompt_ids.len() - 2]);
    }

    #[test]
    fn a_doubled_beginning_is_flagged_with_its_sample() {
        let rows = "{\"id\":\"one\",\"prompt_ids\":[1,3]}\n{\"id\":\"two\",\"prompt_ids\":[1,1,3]}";
        let prompts = made(rows, &args("auto")).unwrap();
        assert_eq!(prompts.info.doubled_bos, ["two"]);
        assert!(prompts.notes()[0].contains("`two`"));
        assert!(made("{\"prompt_ids\":[1,3]}", &args("auto")).unwrap().notes().is_empty());
    }

    #[test]
    fn questions_get_the_instruction_and_prompts_do_not() {
        let text = |rows: &str, args: &PromptArgs| {
            made(rows, args).unwrap().requests[0].prompt_text.clone().unwrap()
        };
        let question = "{\"problem\":\"L1 5\",\"answer\":1}";
        assert_eq!(text(question, &args("none")), format!("L1 5\n\n{INSTRUCTION}"));
        let none = PromptArgs { instruction: Some("none".into()), ..args("none") };
        assert_eq!(text(question, &none), "L1 5");
        assert_eq!(text("{\"prompt\":\"L1 5\"}", &args("none")), "L1 5");
        // What a log says was put to a model is not asked in another way.
        let log = "{\"doc\":{},\"arguments\":[[\"L1 5\"]],\"target\":\"1\"}";
        assert_eq!(text(log, &args("auto")), "L1 5");
    }

    #[test]
    fn what_cannot_be_made_is_refused_with_its_row() {
        let rows = "{\"id\":\"c\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
        let error = made(rows, &args("auto")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(":1: sample `c`") && text.contains("--chat-template"), "{text}");
        assert!(made(rows, &args("model")).unwrap_err().to_string().contains("has none"));
    }
}
