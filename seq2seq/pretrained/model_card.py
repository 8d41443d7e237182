"""The model card of a directory that convert.py writes: README.md, with the metadata of the Hub.

It states what is known: the architecture, how to use the model, and the scores that the run has of
the written checkpoint. A licence is not known. Values of the metadata are JSON, which is YAML too.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.config.data_config import TEMPLATES
from seq2seq.config.tree import Config
from seq2seq.files.hub import NAME
from seq2seq.model.config import num_parameters
from seq2seq.pretrained.json_fields import read_json
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.storage.best_checkpoint import read_best
from seq2seq.storage.run_files import current_name
from seq2seq.storage.run_json import intact_facts

# Those of scores.json and best.json, as the Hub names them.
METRICS = {"BLEU": "bleu", "lower-cased tokenised BLEU": "bleu", "bleu": "bleu", "chrF2": "chrf",
           "chrf": "chrf", "exact match": "exact_match"}  # fmt: skip
HELD_OUT, VALIDATION = "held-out data", "validation data"
LANGUAGE = re.compile("[a-z]{2,3}(?=_|$)")  # of eng_Latn, en_XX or en: ISO 639
TOKENIZERS = {"umt5": "T5Tokenizer"}  # of model types whose files AutoTokenizer does not read


class RunScore(NamedTuple):
    """A score of a run."""

    data: str
    metric: str
    value: float
    signature: str


def model_card(directory: Path, name: str, config: Config, run: Path, checkpoint: str) -> str:
    """The card of the model in a directory of transformers, called `name`, which was written from a
    checkpoint of a run. UserError(CHECKPOINT) if a file with scores of the run is malformed."""
    scores = scores_of(run, checkpoint)
    languages = _languages(config)
    results = _results(scores, languages)
    start = NAME.fullmatch(str(intact_facts(run / "run.json").get("init_from", "")))
    metadata = {
        "language": languages,
        "library_name": "transformers",
        "pipeline_tag": "translation" if len(languages) == 2 else "",
        "tags": ["jax-transformer"],
        "base_model": start["repository"] if start else "",
        "metrics": sorted({metric["type"] for result in results for metric in result["metrics"]}),
        "model-index": [{"name": name, "results": results}] if results else [],
    }
    block = "".join(f"{key}: {json.dumps(value)}\n" for key, value in metadata.items() if value)
    return f"---\n{block}---\n\n# {name}\n\n{_text(directory, config, scores)}"


def scores_of(run: Path, checkpoint: str) -> list[RunScore]:
    """The finite scores of a checkpoint in scores.json and best.json; empty for another model."""
    best, path, scores = read_best(run), run / "scores.json", list[RunScore]()
    checkpoint = current_name(run, checkpoint)
    if path.exists():
        content = read_json(path)
        try:
            if current_name(run, str(content["checkpoint"])) == checkpoint:
                for data, entry in content["sets"].items():
                    scores += [
                        RunScore(data or HELD_OUT, x["name"], float(x["value"]), x["signature"])
                        for x in entry["scores"]
                    ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                CHECKPOINT,
                f"{path} is malformed ({type(error).__name__}: {error}): expected the scores that "
                "training writes; delete it",
            ) from None
    if str(best.get("checkpoint")) == checkpoint:
        scores += [
            RunScore(VALIDATION, metric, float(value), "")
            for metric, value in best.items()
            if metric in (*METRICS, "loss") and isinstance(value, int | float)
        ]
    return [score for score in scores if math.isfinite(score.value)]


def _languages(config: Config) -> list[str]:
    """The languages of source and target that the config states, as the Hub names them."""
    codes = config.data.source_language, config.data.target_language
    return [*dict.fromkeys(match[0] for code in codes if (match := LANGUAGE.match(code)))]


def _results(scores: list[RunScore], languages: list[str]) -> list[dict[str, Any]]:
    """The entries of model-index, one for each data set."""
    task = "translation" if len(languages) == 2 else "text2text-generation"
    scores = [score for score in scores if score.metric in METRICS]
    return [
        {
            "task": {"type": task},
            "dataset": {"name": data, "type": data},
            "metrics": [
                {"type": METRICS[score.metric], "name": score.metric,
                 "value": round(score.value, 4)}
                for score in scores
                if score.data == data
            ],
        }
        for data in dict.fromkeys(score.data for score in scores)
    ]  # fmt: skip


def _text(directory: Path, config: Config, scores: list[RunScore]) -> str:
    model, kind = config.model, read_json(directory / "config.json")["model_type"]
    tokenizer = TOKENIZERS.get(kind, "AutoTokenizer")
    layers = f"{model.num_layers} + {model.decoder_layers}"
    sizes = f"{model.source_vocab_size:,} source and {model.target_vocab_size:,} target tokens"
    languages = "".join(
        f" --{side}_language={code}"
        for side in ("source", "target")
        if (code := getattr(config.data, f"{side}_language"))
        and any(f"{{{side}}}" in getattr(config.data, template) for template in TEMPLATES)
    )
    text = f"""\
An encoder-decoder Transformer with {num_parameters(model):,} parameters, {layers} layers of width
{model.d_model} with {model.num_heads} heads, {sizes}.
It was written by jax-transformer as a model of transformers, `model_type` `{kind}`.

## Use

`DIRECTORY` is the directory of this file. Of a repository of the Hub, it is `hf://OWNER/NAME` for
jax-transformer and `OWNER/NAME` for transformers.

```
python decode.py --workdir=DIRECTORY{languages} --input=FILE
```

```python
from transformers import AutoModelForSeq2SeqLM, {tokenizer}

tokenizer = {tokenizer}.from_pretrained("DIRECTORY")
model = AutoModelForSeq2SeqLM.from_pretrained("DIRECTORY")
ids = model.generate(**tokenizer(["TEXT"], return_tensors="pt"))
print(tokenizer.batch_decode(ids, skip_special_tokens=True))
```
"""
    if scores:
        text += "\n## Scores\n\n| data | metric | value | settings |\n|---|---|---|---|\n"
        for data, metric, value, signature in scores:
            settings = signature.replace("|", " ")
            text += f"| {data} | {metric} | {value:.4g} | {settings} |\n"
    return text
