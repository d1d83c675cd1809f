"""Makes the samples files of this folder with EleutherAI's lm-evaluation-harness, offline.

    python -m venv venv && venv/bin/pip install lm_eval && venv/bin/python make.py

Versions that made the committed files: lm_eval 0.4.13, datasets 5.2.0, Python 3.11.7. A model that knows no language answers
(`Canned`): what it says is fixed by a question's number, so that right, wrong and missing answers are known by hand.
Three tasks: `gen` (generate_until, two filters), `choice` (multiple choice, log-likelihoods) and `chat` (the prompt is a list of
messages as JSON).
"""

import glob
import json
import os
import shutil
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import lm_eval
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

# Question, gold answer, what the model says. Strict filter wants "#### N"; the flexible one takes the last number.
DOCS = [
    ("2 + 2", "4", "two and two\n#### 4"),
    ("3 * 5", "15", "that is 15"),
    ("10 - 1", "9", "#### 8"),
    ("7 + 6", "13", "no idea"),
]
CHOICES = [
    ("sky", ["green", "blue", "red"], 1, [-4.5, -0.25, -3.0]),
    ("grass", ["green", "blue", "red"], 0, [-2.0, -1.5, -7.125]),
]

GEN = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["Question:"]
  do_sample: false
  temperature: 0.0
  max_gen_toks: 32
filter_list:
  - name: strict-match
    filter:
      - function: regex
        regex_pattern: "#### (\\\\-?[0-9]+)"
      - function: take_first
  - name: flexible-extract
    filter:
      - function: regex
        group_select: -1
        regex_pattern: "(-?[0-9]+)"
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""

CHOICE = """task: choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "The {{{{thing}}}} is"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""


class Canned(LM):
    """Says what the tables above say."""

    tokenizer_name = "canned"

    def generate_until(self, requests, disable_tqdm=False):
        said = {question: text for question, _, text in DOCS}
        return [next(text for question, text in said.items() if question in str(one.args[0])) for one in requests]

    def loglikelihood(self, requests, disable_tqdm=False):
        out = []
        for one in requests:
            context, continuation = one.args
            thing, choices, _, scores = next(row for row in CHOICES if row[0] in context)
            at = choices.index(continuation.strip())
            out.append((scores[at], scores[at] == max(scores)))
        return out

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        return json.dumps(chat_history, ensure_ascii=False)

    def chat_template(self, chat_template=False):
        return "messages"


def write(folder, name, rows):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    return path


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    work = tempfile.mkdtemp()
    questions = write(work, "gen.jsonl", [{"question": q, "answer": a} for q, a, _ in DOCS])
    things = write(work, "choice.jsonl", [{"thing": t, "choices": c, "label": g} for t, c, g, _ in CHOICES])
    tasks = os.path.join(work, "tasks")
    os.mkdir(tasks)
    for name in ("gen", "chat"):
        with open(os.path.join(tasks, name + ".yaml"), "w") as file:
            file.write(GEN.format(name=name, data=questions))
    with open(os.path.join(tasks, "choice.yaml"), "w") as file:
        file.write(CHOICE.format(data=things))
    manager = TaskManager(include_path=tasks, include_defaults=False)
    for names, chat in ((["gen", "choice"], False), (["chat"], True)):
        tracker = EvaluationTracker(output_path=os.path.join(work, "out"))
        results = lm_eval.simple_evaluate(
            model=Canned(), tasks=names, task_manager=manager, log_samples=True, apply_chat_template=chat,
            evaluation_tracker=tracker, bootstrap_iters=0,
        )
        samples = results.pop("samples")
        tracker.save_results_aggregated(results=results, samples=samples)
        for name in names:
            tracker.save_results_samples(task_name=name, samples=samples[name])
    for path in glob.glob(os.path.join(work, "out", "**", "samples_*.jsonl"), recursive=True):
        task = os.path.basename(path).split("_")[1]
        shutil.copyfile(path, os.path.join(here, f"samples_{task}.jsonl"))
        print(task, os.path.basename(path))
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
