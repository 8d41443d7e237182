"""A caller's own rules in a Translator: the documented example, samples, and compiled programs."""

from collections import Counter
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from seq2seq.decoding.translator import Translator
from seq2seq.model.search.arguments import Place
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.model.search.rules import forbid_sequences_mask
from seq2seq.runtime.errors import UserError
from tests.support.documents import ROOT, fenced
from tests.support.models.echo import echoing_translator
from tests.support.models.random_translator import LINES, scored, translator_of
from tests.support.models.tiny_marian import SENTENCES, sentencepiece
from tests.support.tiny import write_run


def rules_for(sequences):
    def rules(logits, normalizer, history, t, sentences):
        mask = forbid_sequences_mask(Place(history, t, logits.shape[-1]), sequences)
        return logits, normalizer, mask

    return rules


def test_the_words_of_the_documented_example_never_occur(tmp_path):
    """In samples of a random model all pieces occur; the forbidden words are frequent ones."""
    ids = dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3)
    pieces = SentencePieceTokenizer("unigram", sentencepiece(SENTENCES, 90, **ids))
    write_run(tmp_path / "run", tokenizer=pieces)
    options = dict(suppress="<pad> <s> <unk>", samples=8)
    usual = Translator.load(tmp_path / "run").translate(SENTENCES, **options)
    count = Counter(word for samples in usual for text in samples for word in text.split())
    words = sorted(count, key=lambda word: -count[word] * (2 < len(word) < 8))[:3]
    (example,) = (
        code
        for code in fenced((ROOT / "docs" / "DECODING.md").read_text(encoding="utf-8"), "python")
        if "segmentations" in code
    )
    changed = example.replace("runs/mine", str(tmp_path / "run"))
    assert '["Katze", "Hund"]' in changed
    names = {}
    exec(changed.replace('["Katze", "Hund"]', repr(words)).rpartition("translator.")[0], names)
    assert max(len(sequence.split()) for sequence in names["sequences"]) > 2
    sequences = " | ".join(names["sequences"])
    restricted = names["translator"].translate(SENTENCES, forbid_sequences=sequences, **options)
    used = {word for samples in restricted for text in samples for word in text.split()}
    assert not used & set(words)
    assert all(2 < len(word) < 8 for word in words) and restricted != usual


@pytest.fixture(scope="module")
def translator():
    return translator_of()


def pairs_in(translations):
    """The counts of two words in a row."""
    texts = [text.split() for nbest in translations for text in nbest]
    return Counter(pair for words in texts for pair in zip(words, words[1:], strict=False))


@pytest.mark.slow
def test_translations_with_a_rule_have_the_scores_of_the_model():
    """Masks leave log-probabilities unchanged. Rules of a call replace those of the translator."""
    translator = translator_of(layers=2)  # one layer has the same best translations with the rules
    usual = translator.translate(LINES)
    frequent = [pair for pair, _ in pairs_in(usual).most_common(2)]
    rules = rules_for([translator.target_tokenizer.encode(" ".join(pair)) for pair in frequent])
    with_rules = translator.with_options(rules=rules)
    translations = list(with_rules.stream(LINES))
    texts = [
        [hypothesis.text for hypothesis in translation.hypotheses] for translation in translations
    ]
    assert not set(pairs_in(texts)) & set(frequent)
    assert texts == translator.translate(LINES, rules=rules) != usual
    assert translator.translate(LINES) == usual
    pairs = [(LINES[i], text) for i in (0, 3) for text in texts[i]]
    expected = [hypothesis.score for i in (0, 3) for hypothesis in translations[i].hypotheses]
    scores = [pair.score for pair in scored(with_rules, pairs)]
    assert scores == pytest.approx(expected, abs=1e-4)


def test_rules_change_no_score_of_a_given_target(translator):
    def forbid(logits, normalizer, history, t, sentences):
        return logits, normalizer, jnp.ones((1, 1, logits.shape[-1]), bool).at[..., 7].set(False)

    pairs = [("eins zwei", "vier elf acht"), ("drei", "eins zwei drei vier fünf")]
    usual = scored(translator, pairs)
    assert any(translator.target_tokenizer.piece(7) in score.tokens for score in usual)
    assert scored(translator.with_options(rules=forbid), pairs) == usual


def test_programs_are_kept_by_the_identity_of_the_rules(translator):
    rules, equal = rules_for([(4, 5)]), rules_for([(4, 5)])
    first, again, second = (
        translator.with_options(rules=chosen) for chosen in (rules, rules, equal)
    )
    assert first is again is first.with_options() and first is not second
    programs = [instance.engine.program(16) for instance in (translator, first, second)]
    assert len(set(programs)) == 3
    assert first.with_options(alpha=1.0).engine.program(16) == programs[1]
    assert first.rules is first.with_options(beam_size=5).rules is rules


def test_the_error_of_scores_that_are_nan_mentions_the_rules_if_there_are_any():
    def nan(_, request):
        shape = (*request.lengths.shape, 1)
        scores = np.full(shape, np.nan, np.float32)
        return Hypotheses(request.source[:, :, None], np.zeros(shape, int), scores, scores)

    plain, _ = echoing_translator()
    for translator, mentioned in ((plain, False), (plain.with_options(rules_for([(4,)])), True)):
        translator.engine._search = lambda program: nan
        with pytest.raises(UserError, match="line 1: the model's logits are not finite") as error:
            translator.translate(["eins"])
        assert ("rules give a token a log-probability above 0" in str(error.value)) is mentioned


@dataclass
class WithState:
    """It can change, so it has no hash."""

    words: int = 0

    def __call__(self, logits, normalizer, *_):
        return logits, normalizer, logits < 0


@pytest.mark.parametrize("rules", ["forbid", [1], WithState()], ids=str)
def test_rules_that_are_not_a_hashable_function_are_refused(translator, rules):
    for call in (lambda: translator.translate(["eins"], rules=rules),
                 lambda: Translator.load("nowhere", rules=rules)):  # fmt: skip
        with pytest.raises(TypeError, match="^rules must be a hashable function of .*, got "):
            call()
