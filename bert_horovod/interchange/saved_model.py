"""Writes a checkpoint as a SavedModel for TensorFlow Serving and tf.saved_model.load, with or without its tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bert_horovod.errors import RunError, UserError
from bert_horovod.interchange.architectures import ANSWERS, CLASSIFICATION, SEVERAL_LABELS
from bert_horovod.interchange.huggingface import Pretrained
from bert_horovod.interchange.sentence_transformers import VECTOR, SentenceVectors, vectors_of
from bert_horovod.interchange.serving_graph import Served
from bert_horovod.interchange.suitability import require_segments, tells_texts_apart
from bert_horovod.interchange.text_graph import TextRows, TextTokens
from bert_horovod.runtime import lazy_tensorflow as tf
from bert_horovod.runtime.quiet import native_messages_held_back
from bert_horovod.tasks.text_head import ranks

QUESTION_TOKENS, ANSWER_TOKENS = 64, 30  # tokens of a question, of an answer, at most (google-research/bert)


def write_saved_model(directory: Path, served: Served) -> None:
    """Write the model with one signature, serving_default, which takes serving_graph.INPUTS."""
    _save(directory, served, {"serving_default": served.serve})


def write_text_model(
    directory: Path, served: Served, pretrained: Pretrained, checkpoint: object, max_length: int | None = None
) -> None:
    """Write the model with its tokenizer: serving_default takes strings, `tokens` takes ids.

    A classifier takes `text` and gives `label` (string) and `probabilities`, in the order of config.json's id2label; of
    any number of labels `probabilities` alone; a regression gives `score`, a reranker a probability as `score`. Its
    signature `pairs`, which a model has that tells two texts apart, takes `text` and `text_pair`. For question
    answering `question` and `context` give `answer`, a part of the context as it is written there, `score` (the sum of
    its start logit and its end logit), `null_score` (the same sum for "no answer") and `unread_words`. Of a checkpoint
    of vectors `text` gives `sentence_embedding`, and each of its prompts has a signature of its name. Texts that are
    longer than the model's positions, of a classifier than `max_length`, are cut at their ends: there are no windows.

    Raises UserError for other architectures, and for settings of the tokenizer that TensorFlow Text does not have.
    """
    if unusual := pretrained.tokenizer_settings.unusual:
        raise UserError(
            f"--with_tokenizer: {checkpoint} has a tokenizer with {' and '.join(unusual)}, which cannot be a part of "
            "the graph; leave the flag out"
        )
    vectors = vectors_of(served.architecture.entries or {})
    length, classifies = pretrained.model.max_position_embeddings, served.architecture.name == CLASSIFICATION
    most = vectors.max_seq_length if vectors else max_length if classifies else None
    length = min(length, most or length)
    served.texts = TextRows(pretrained.vocabulary, pretrained.tokenizer_settings, length)
    if classifies:
        signatures = {"serving_default": _classify(served)}
        if tells_texts_apart(served.model, pretrained.tokenizer_settings):
            signatures["pairs"] = _classify_pairs(served)
    elif vectors:
        signatures = prompt_signatures(vectors)
        signatures = {name: _vectors(served, prompt, vectors.lowercase) for name, prompt in signatures.items()}
    elif served.architecture.name == ANSWERS:
        require_segments(checkpoint, served.model, pretrained.tokenizer_settings, "question", "context")
        signatures = {"serving_default": _answer(served)}
    else:
        raise UserError(
            f"--with_tokenizer: the checkpoint is a {served.architecture.class_name(served.model)}, expected "
            f"{CLASSIFICATION} or {ANSWERS}, or vectors, whose outputs are of a text; leave the flag out"
        )
    _save(directory, served, signatures | {"tokens": served.serve})


def _save(directory: Path, served: Served, signatures: dict[str, Callable]) -> None:
    try:
        with native_messages_held_back():  # tf.saved_model.save prints its steps
            tf.saved_model.save(served, str(directory), signatures)
    except tf.errors.OpError as error:  # such as a full disk
        raise RunError(f"TensorFlow cannot write {directory}: {str(error).splitlines()[0][:300]}") from error


def _signature(*names: str) -> Callable[[Callable[..., dict[str, tf.Tensor]]], Callable]:
    """Makes a function of texts, string [rows] each, a signature whose inputs have these names.

    An empty batch is computed as one of an empty text, because operations of TensorFlow Text fail without rows.
    """

    def signature(compute: Callable[..., dict[str, tf.Tensor]]) -> Callable:
        specs = [tf.TensorSpec([None], tf.string, name) for name in names]

        @tf.function(input_signature=specs, autograph=False)
        def of_any_number(*texts: tf.Tensor) -> dict[str, tf.Tensor]:
            count = tf.shape(texts[0])[0]
            blank = tf.fill([tf.cast(count == 0, tf.int32)], "")
            outputs = compute(*(tf.concat([text, blank], 0) for text in texts))
            return {name: output[:count] for name, output in outputs.items()}

        return of_any_number

    return signature


def _classify(served: Served) -> Callable:
    @_signature("text")
    def classify(text: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = served.texts.single(served.texts.tokenize(text))
        return _labelled(served, served.outputs(**rows)["logits"])

    return classify


def prompt_signatures(vectors: SentenceVectors) -> dict[str, str]:
    """What stands before the texts of each signature: of serving_default and of each prompt whose name may be one."""
    taken = {"serving_default": vectors.prompts.get(vectors.default_prompt or "", "")}
    return taken | {name: text for name, text in vectors.prompts.items() if name.isidentifier() and name != "tokens"}


def _vectors(served: Served, prompt: str, lowercase: bool) -> Callable:
    @_signature("text")
    def vectors(text: tf.Tensor) -> dict[str, tf.Tensor]:
        whole = tf.strings.join([prompt, text])
        rows = served.texts.single(served.texts.tokenize(tf.strings.lower(whole, "utf-8") if lowercase else whole))
        return {VECTOR: served.outputs(**rows)[VECTOR]}

    return vectors


def _classify_pairs(served: Served) -> Callable:
    @_signature("text", "text_pair")
    def classify(text: tf.Tensor, text_pair: tf.Tensor) -> dict[str, tf.Tensor]:
        texts = served.texts
        rows = texts.pairs(*texts.trimmed(texts.tokenize(text), texts.tokenize(text_pair)))
        return _labelled(served, served.outputs(**rows)["logits"])

    return classify


def _labelled(served: Served, logits: tf.Tensor) -> dict[str, tf.Tensor]:
    labels = served.architecture.labels
    if served.architecture.problem == SEVERAL_LABELS:
        return {"probabilities": tf.sigmoid(logits)}
    if len(labels) == 1:
        score = logits[:, 0]
        return {"score": tf.sigmoid(score) if ranks(served.architecture.entries or {}) else score}
    return {"label": tf.gather(tf.constant(labels), tf.argmax(logits, -1)), "probabilities": tf.nn.softmax(logits)}


def _answer(served: Served) -> Callable:
    @_signature("question", "context")
    def answer(question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        texts = served.texts
        asked, whole = texts.tokenize(question), texts.tokenize(context)
        longest = min(QUESTION_TOKENS, max((texts.length - 3) // 2, 1))
        asked = asked.cut(tf.fill([asked.ids.nrows()], longest))
        question_tokens = tf.cast(asked.ids.row_lengths(), tf.int32)
        read = whole.cut(texts.length - 3 - question_tokens)
        outputs = served.outputs(**texts.pairs(asked, read))
        best = best_answers(outputs["start_logits"], outputs["end_logits"], question_tokens + 2, read, context)
        return best | {"unread_words": unread_words(whole, read, context)}

    return answer


def unread_words(whole: TextTokens, read: TextTokens, texts: tf.Tensor) -> tf.Tensor:
    """Number of words in `texts`, string [rows], after the tokens that were read: int32 [rows]; a cut word counts."""
    counts, kept = (tf.cast(tokens.ids.row_lengths(), tf.int32) for tokens in (whole, read))
    lost = kept < counts
    starts = tf.pad(whole.starts.to_tensor(0), [[0, 0], [0, 1]])
    first = tf.gather(starts, tf.where(lost, kept, 0)[:, None], batch_dims=1)[:, 0]
    sizes = tf.strings.length(texts)
    unread = tf.strings.substr(texts, tf.where(lost, first, 0), tf.where(lost, sizes - first, 0))
    return tf.cast(tf.strings.split(unread).row_lengths(), tf.int32)


def best_answers(
    starts: tf.Tensor, ends: tf.Tensor, begins: tf.Tensor, tokens: TextTokens, contexts: tf.Tensor
) -> dict[str, tf.Tensor]:
    """The answer with the best sum of start and end logit: at least 1 and at most ANSWER_TOKENS tokens of the context.

    Logits are float32 [rows, length]; `begins` is the position of the context's first token, int32 [rows].
    Returns answer, string [rows]; score and null_score, float32 [rows]. A context without tokens gets an empty answer,
    with null_score as its score.
    """
    length, counts = tf.shape(starts)[1], tf.cast(tokens.ids.row_lengths(), tf.int32)
    place = tf.range(length)[None]
    inside = (place >= begins[:, None]) & (place < (begins + counts)[:, None])  # (rows, length)
    span = place - tf.transpose(place)  # number of tokens from start to end, minus 1: (length, length)
    allowed = inside[:, :, None] & inside[:, None, :] & ((span >= 0) & (span < ANSWER_TOKENS))
    scores = tf.where(allowed, starts[:, :, None] + ends[:, None, :], float("-inf"))
    best = tf.argmax(tf.reshape(scores, [-1, length * length]), -1, tf.int32)
    first, last = best // length - begins, best % length - begins
    present = counts > 0
    places = [tf.where(present, index, 0)[:, None] for index in (first, last)]
    begin, end = (
        tf.gather(tf.pad(part.to_tensor(0), [[0, 0], [0, 1]]), index, batch_dims=1)[:, 0]
        for part, index in zip((tokens.starts, tokens.ends), places, strict=True)
    )
    null = starts[:, 0] + ends[:, 0]
    return {
        "answer": tf.where(present, tf.strings.substr(contexts, tf.where(present, begin, 0), end - begin), ""),
        "score": tf.where(present, tf.reduce_max(scores, [1, 2]), null),
        "null_score": null,
    }
