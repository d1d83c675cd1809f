//! Templates written for these tests, with what Jinja's rules make of them by hand.

use std::path::Path;

use super::*;

/// The ChatML layout of the Qwen family, written anew: a system turn, turns, an empty thought where thinking is off.
const CHATML: &str = r#"{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
        {%- continue %}
    {%- endif %}
    {%- set text = message.content %}
    {%- if message.role == 'assistant' and '</think>' in text %}
        {%- set text = text.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {%- set ns.last = loop.index %}
    {{- '<|im_start|>' + message.role + '\n' + text.strip() + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"#;

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn template(text: &str) -> ChatTemplate {
    let dir = folder(&[
        (FILE, text),
        (config::FILE, r#"{"bos_token":"<s>","eos_token":{"content":"</s>"}}"#),
    ]);
    ChatTemplate::read(dir.path()).unwrap().unwrap()
}

fn turns(list: &[(&str, &str)]) -> Vec<Message> {
    let turn = |(role, content): &(&str, &str)| Message {
        role: (*role).into(),
        content: (*content).into(),
    };
    list.iter().map(turn).collect()
}

#[test]
fn a_conversation_is_laid_out_turn_by_turn() {
    let chat = template(CHATML);
    let talk = turns(&[
        ("system", "Be brief."),
        ("user", "2+2? "),
        ("assistant", "<think>\nsum\n</think>\n\n4"),
        ("user", "<b> & 'c'"),
    ]);
    let text = chat.render(&talk, ChatFlags::default()).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n\
         <|im_start|>assistant\n4<|im_end|>\n<|im_start|>user\n<b> & 'c'<|im_end|>\n<|im_start|>assistant\n"
    );
    let off = ChatFlags { enable_thinking: Some(false), ..ChatFlags::default() };
    assert!(chat.render(&talk, off).unwrap().ends_with("assistant\n<think>\n\n</think>\n\n"));
    let on = ChatFlags { enable_thinking: Some(true), ..ChatFlags::default() };
    assert_eq!(chat.render(&talk, on).unwrap(), text, "thinking on adds nothing in this layout");
    let bare = ChatFlags { add_generation_prompt: false, ..ChatFlags::default() };
    assert!(chat.render(&talk, bare).unwrap().ends_with("'c'<|im_end|>\n"));
}

#[test]
fn blocks_take_their_newline_and_special_tokens_are_known() {
    let chat =
        template("{{ bos_token }}\n  {% if tools is none %}\nA\n  {% endif %}\n{{ eos_token }}\n");
    // The newline after a block tag goes, as do the blanks before it; so does one newline at the end.
    assert_eq!(chat.render(&[], ChatFlags::default()).unwrap(), "<s>\nA\n</s>");
}

#[test]
fn the_date_of_the_run_never_enters_a_prompt() {
    let chat = template(
        "{% if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}26 Jul 2024{% endif %}",
    );
    assert_eq!(chat.render(&[], ChatFlags::default()).unwrap(), "26 Jul 2024");
}

#[test]
fn json_is_written_as_python_writes_it() {
    let chat = template(
        "{{ messages[0] | tojson }}|{{ [1, 2.5, none, true] | tojson }}|{{ [1] | tojson(indent=2) }}",
    );
    let text = chat.render(&turns(&[("user", "<é> \"q\" \\u003c")]), ChatFlags::default()).unwrap();
    // python: json.dumps(x, ensure_ascii=False)
    assert_eq!(
        text,
        "{\"role\": \"user\", \"content\": \"<é> \\\"q\\\" \\\\u003c\"}|[1, 2.5, null, true]|[\n  1\n]"
    );
}

#[test]
fn signs_without_end_are_refused_before_the_engine_reads_them() {
    for sign in ["-", "- ", "not ", "- not\n"] {
        let text = format!("{{{{ {}1 }}}}", sign.repeat(50_000));
        let refused = template(&text).render(&turns(&[("user", "x")]), ChatFlags::default());
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("in a row"), "{error}");
    }
    let rule = format!("{}{{{{ 1 - -1 }}}}", "-".repeat(80));
    let kept = template(&rule).render(&turns(&[("user", "x")]), ChatFlags::default()).unwrap();
    assert!(kept.ends_with("-2"), "{kept}");
}

#[test]
fn what_a_template_refuses_is_told_in_one_line_with_its_place() {
    let fault =
        |text: &str| template(text).render(&[], ChatFlags::default()).unwrap_err().to_string();
    let refused = fault("x\n{{ raise_exception('roles must alternate') }}");
    assert!(refused.contains("roles must alternate") && refused.contains("line 2"), "{refused}");
    assert!(fault("{% if %}").contains(FILE));
    let endless =
        fault("{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}");
    assert!(!endless.contains('\n'), "{endless}");
}

#[test]
fn the_file_goes_before_the_configuration_and_a_list_gives_its_default() {
    let listed = r#"{"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}]}"#;
    let read = |files: &[(&str, &str)]| {
        let dir = folder(files);
        ChatTemplate::read(dir.path()).unwrap().map(|chat| {
            (chat.source.clone(), chat.render(&[], ChatFlags::default()).unwrap(), chat.sha256())
        })
    };
    let (source, text, hash) = read(&[(config::FILE, listed)]).unwrap();
    assert_eq!((source.as_str(), text.as_str()), (config::FILE, "D"));
    // sha256 of the letter D.
    assert_eq!(hash, "3f39d5c348e5b79d06e842c114e6cc571583bbf44e4b0ebfda1a01ec05745d43");
    let (source, text, _) = read(&[(config::FILE, listed), (FILE, "F")]).unwrap();
    assert_eq!((source.as_str(), text.as_str()), (FILE, "F"));
    assert_eq!(read(&[(config::FILE, r#"{"bos_token":"<s>"}"#)]), None);
    assert_eq!(read(&[]), None);
    let dir = folder(&[(config::FILE, r#"{"chat_template":[{"name":"rag","template":"R"}]}"#)]);
    assert!(ChatTemplate::read(dir.path()).unwrap_err().to_string().contains("`default`"));
    assert!(ChatTemplate::from_file(Path::new("/none.jinja"), dir.path()).is_err());
}
