"""Mistakes in paths, columns, values and flags: one message each, told before TensorFlow is imported."""

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from bert_horovod.__main__ import dispatch, parse
from bert_horovod.recipe_files.loading import recipe_from_table, recipe_to_toml
from bert_horovod.tasks.text_head import Classification
from tests.horovod_runs import PROJECT, run_python
from tests.reporting.toy_record import write_run
from tests.toy_glue import WORDS, write_checkpoint, write_glue, write_labels
from tests.toy_tokenizers import write_kind
from tests.toys import SMALL_VOCABULARY, toy_recipe_table, write_toy_store

EXPORT = "export --checkpoint model --output out"
EXTEND = "vocab --input a.txt --output v.txt --extend"
PREPARE = "prepare --output_dir out --vocab"
PRETRAIN = "pretrain --recipe quickstart --output_dir out --data_dir"
SIZE = "--set model.vocab_size=1000"
EVALUATE = "evaluate --checkpoint bert --data_dir words"
PAIRS = "evaluate --checkpoint bert --pairs"
PROBED = f"{PRETRAIN} small --set model.vocab_size=64 --set execution.probe"
INSPECT = "inspect --data_dir small --row"
RERANK = "finetune --task reranking --checkpoint model --output_dir out --train_file rank.csv --dev_file rank.csv"
EMBED = "finetune --task embedding --checkpoint model --output_dir out --train_file rank.csv"
OWN = "finetune --task classification --checkpoint model --output_dir out --train_file"
LABELS = (
    "finetune --task multilabel --checkpoint model --output_dir out --train_file own/train.csv --label_column labels"
)
SQUAD = "finetune --task squad --checkpoint model --output_dir out --data_dir"
NER = "finetune --task ner --checkpoint model --output_dir out --dev_file a.conll"
GLUE = "finetune --task sst2 --output_dir out --checkpoint"
PREDICT = "predict --checkpoint model --input"
TAG = "predict --checkpoint tags --input"
MINE = "mine --input rank.csv --output o.jsonl"
FILES = f"{MINE} --vectors"
PROBE = "probe pretrained --task"
SCORE = "score --predictions none.tsv --task"
TUNE = "tune --recipe toy.toml --data_dir small"
PLAN = "plan --recipe bert-large-lamb-64k"
V100 = f"{PLAN} --device V100"
T4S = f"{PLAN} --cluster t4-10gbit.toml"
RANKS = "-- pretrain --recipe none.toml --data_dir none --output_dir none"

CASES = [
    # Paths and columns.
    (f"{PREPARE} none --input a.txt", "cannot read the vocabulary none: No such file"),
    (f"{PREPARE} model --input none.txt", "--input none.txt: no such file"),
    (f"{PREPARE} model --input {'text ' * 80!r}", "no such file"),
    (f"{PREPARE} vocab.txt --input gs://lab/a.txt", "needs gcsfs, which cannot be imported"),
    (f"{PREPARE} vocab.txt --input az://lab/a.txt", "install it: pip install adlfs"),
    (f"{PREPARE} vocab.txt --input s3://id:hidden@lab/a.txt", "a user or a password before @; expected a URL"),
    (f"{PREPARE} vocab.txt --input https://host/a.txt?sig=hidden", "in its parameter sig; expected a URL"),
    (f"{PREPARE} vocab.txt --input sftp://host/a.txt", "mount the directory (sshfs HOST:DIR MOUNTED) or copy it here"),
    (f"{PREPARE} vocab.txt --input ftp://host/a.txt", "no such scheme, ftp://; expected a path, or s3://"),
    ("status gs://lab/run", "needs gcsfs, which cannot be imported"),
    ("predict --checkpoint gs://lab/run --input a.csv --output b.csv", "needs gcsfs, which cannot be imported"),
    (f"{PREPARE} s3://lab/vocab.txt --input a.txt", "--vocab s3://lab/vocab.txt: expected a path on this"),
    (f"{OWN} s3://lab/a.csv", "--train_file s3://lab/a.csv: expected a path on this machine"),
    ("predict --checkpoint model --input https://host/a.csv", "--input https://host/a.csv: expected a path"),
    (f"{PREPARE} vocab.txt --input a.jsonl", 'no field "text", its fields are'),
    (f"{PREPARE} vocab.txt --input a.parquet", "no column 'text'; expected a column of text: --text_field"),
    (f"{PREPARE} vocab.txt --input a.txt --text_field body", "--text_field body: it is read only"),
    ("vocab --output v --input a.txt --text_field body", "--text_field body: it is read only with"),
    (f"{PRETRAIN} none", "none is not a token store"),
    (f"{PRETRAIN} own=s3://lab/store --data_dir general=small", "own=s3:/lab/store: expected a path on this machine"),
    (f"{PRETRAIN} Own=store --data_dir general=small", "--data_dir own=DIR, with names that match"),
    (f"{V100} --json --data_dir store", "--data_dir store: it is read only without --json; leave it out"),
    ("pretrain --recipe none.toml --data_dir store --output_dir out", "cannot read the recipe none"),
    (f"{PRETRAIN} store --init_checkpoint none", "--init_checkpoint: there is none at none"),
    (f"{PRETRAIN} store --output_dir a.txt", "--output_dir a.txt is a file"),
    (f"{PRETRAIN} store --output_dir model", "--output_dir model holds other things (config.json"),
    (f"{PRETRAIN} store", "model.vocab_size = 4096, but the token store store was made with a vocabulary of 1000"),
    (f"{PRETRAIN} store {SIZE} --init_checkpoint xlnet", "model_type = 'xlnet': expected 'bert'"),
    (f"{PREPARE} other --input a.txt", "tokenizer_class = 'BertJapaneseTokenizer' is not supported"),
    (f"{OWN} a.csv --dev_file a.csv --output_dir model", "--output_dir model holds other things"),
    (f"{OWN} a.csv --dev_file a.csv --checkpoint other", "tokenizer_class = 'BertJapaneseTokenizer'"),
    (f"{OWN} a.csv --dev_file a.csv --checkpoint weightless", "weightless has no model.safetensors"),
    (f"{OWN} a.csv --dev_file a.csv --text_columns label", "name a column twice"),
    (f"{OWN} a.csv --dev_file a.csv --text_columns text,text", "name a column twice"),
    (f"{OWN} a.csv --dev_file a.csv --text_columns a,b,c", "a,b,c: expected one name, or two with a comma between"),
    (f"{OWN} none.csv --dev_file a.csv", "cannot read none.csv"),
    (f"{EXPORT} --format savedmodel --int8", "--int8"),
    (f"{EXPORT} --format onnx --int8 --task sst2", "--task and --dev_file belong together"),
    (f"{EXPORT} --format onnx --limit 1", "--limit"),
    (f"{RERANK} --text_columns text", "--text_columns text: --task reranking expects two names"),
    (f"{RERANK}", "rank.csv: a label is 5; --task reranking expects relevance from 0 to 1"),
    (f"{EMBED} --dev_file rank.csv --text_columns query,passage,label,other", "no column 'other', its columns are"),
    (f"{EMBED} --dev_file rank.csv --text_columns query,query", "query,query: expected names, each once: of the"),
    (
        f"{EMBED} --dev_file rank.csv --text_columns query,pos --train_file none.jsonl",
        "none.jsonl, line 2: no passage in the column 'pos'",
    ),
    (f"{EMBED} --dev_file rank.csv --text_columns query,label --label_column label", "--label_column label: expected"),
    (f"{EMBED} --dev_file rank.csv --text_columns query --label_column label", "scores are of two texts; expected two"),
    (f"{EMBED} --dev_file rank.csv --text_columns passage,query", "same text in the column 'query'; expected at least"),
    (f"{EMBED} --dev_file rank.csv", "rank.csv: all 2 items have the same text in the column 'query'; expected"),
    (f"{LABELS} --dev_fraction 0.5 --train_file bars.csv", "'joy|love', and no field has a comma; expected"),
    (
        f"{SCORE} multilabel --predictions bars.csv --dev_file bars.csv --label_column labels",
        "--label_separator '|', and",
    ),
    (f"{OWN} a.csv --dev_file a.csv --text_columns 1 --label_column 3", "no column '3', its columns are ['1', '2']; "),
    (f"{EMBED} --dev_file rank.csv --text_columns query,answer", "no column 'answer', its columns are"),
    (f"{EMBED} --dev_file rank.csv --label_column passage", "query,passage and --label_column passage: expected"),
    (f"{EMBED} --dev_file same.csv --train_file same.csv --label_column label", "have the label 1.0; expected at"),
    (f"{EMBED} --dev_file rank.csv --dev_columns query,passage", "--dev_columns query,passage: expected two names, of"),
    (f"{EMBED} --dev_fraction 0.5 --text_columns query --dev_columns query,passage", "of pairs in --dev_file, with"),
    (
        f"{EMBED} --dev_file rank.csv --text_columns query --test_file rank.csv",
        "--test_file rank.csv: texts alone have",
    ),
    (f"{EMBED}", "--task embedding: expected --train_file, one --dev_file (or --dev_fraction 0.1"),
    (f"{EMBED} --data_dir none --label_column label", "--data_dir is the directory STS-B of GLUE, whose columns are"),
    ("finetune --task embedding --checkpoint model --output_dir out --data_dir none", "--data_dir none has no"),
    (f"{EMBED} --dev_file rank.csv --prompts query:", "--prompts: 1 given, but there are 2 text columns; expected one"),
    (f"{EMBED} --dev_file rank.csv --matryoshka 8,a", "--matryoshka 8,a: expected lengths with commas between"),
    (f"{GLUE} model --data_dir . --symmetric", "--symmetric: it is read only with --task embedding"),
    ("score --task embedding --predictions rank.csv", "--task embedding: expected --dev_file, the file with the"),
    (MINE, "--checkpoint or --vectors: expected one of them"),
    (f"{MINE} --checkpoint model --ranks 5-1", "--ranks 5-1: expected two places, from 1 on, as in 10-50"),
    (f"{MINE} --checkpoint model --ranks 1-2 --per_query 3", "--ranks 1-2: 2 places, but --per_query 3"),
    (f"{MINE} --checkpoint model --margin nan", "--margin nan: expected a number from 0 on, as in 0.05, or a share"),
    (f"{MINE} --checkpoint model --max_score nan", "--max_score nan: expected a number"),
    (f"{MINE} --checkpoint model --seed -1", "--seed -1: expected at least 0"),
    (f"{MINE} --checkpoint model --seed 3 --sampling top", "--seed 3: it is read only with --sampling random"),
    (f"{MINE} --checkpoint model --text_columns query", "--text_columns query: expected two names, of the query and"),
    (f"{MINE} --checkpoint model --text_columns query,scores", "mine writes 'scores' itself; rename the column"),
    (f"{MINE} --checkpoint model --text_columns query,text", "rank.csv has no column 'text', its columns are"),
    (f"{MINE} --checkpoint model --output o.txt", "--output o.txt: expected a name that ends with .jsonl, .csv or"),
    (f"{MINE} --checkpoint model --output o.csv.gz", "--output o.csv.gz: expected a name that ends with .jsonl, .csv"),
    (f"{MINE} --checkpoint model --output rank.csv", "--output rank.csv is the input rank.csv, which would be lost"),
    (f"{MINE} --checkpoint model --output /proc/o.csv", "--output: cannot write to /proc: No such file or directory"),
    (f"{MINE} --checkpoint model --corpus none.txt", "cannot read none.txt"),
    (f"{MINE} --checkpoint model --corpus empty.txt", "--corpus empty.txt is empty; expected a passage in each line"),
    (f"{MINE} --checkpoint model --corpus own/train.csv", "train.csv has no column 'passage', its columns are"),
    (f"{FILES} two.npy", "--vectors two.npy: expected two files, of queries and of passages"),
    (f"{FILES} two.npy,none.npy", "cannot read none.npy: [Errno 2] No such file or directory"),
    (f"{FILES} two.npy,rank.csv", "cannot read rank.csv: "),
    (f"{FILES} two.npy,empty.csv", "cannot read empty.csv: "),
    (f"{FILES} two.npy,a.XLSX", "cannot read a.XLSX: "),
    (f"{FILES} two.npy,one.npy", "one.npy has 1 vectors; expected 2, one for each passage of --input"),
    (f"{FILES} two.npy,wide.npy", "--vectors: of 2 and of 3 numbers; expected files of one checkpoint"),
    (f"{FILES} two.npy,whole.npy", "whole.npy is no table of real numbers; expected a .npy of predict --vectors"),
    (f"{FILES} two.npy,one.npy --corpus a.txt", "1 passage of its pairs, as 'A.', not in --corpus a.txt; expected all"),
    (f"{OWN} a.csv --dev_file a.csv --text_columns body", "no column 'body', its columns are"),
    (f"{OWN} a.csv --dev_file a.csv --label_column stars", "no column 'stars', its columns are"),
    (f"{GLUE} model --data_dir none", "--data_dir none has no train.tsv"),
    (f"{SQUAD} none", "--data_dir none has no train-v1.1.json"),
    (f"{SQUAD} . --train_file none.json", "--train_file none.json: there is no such file"),
    (f"{SQUAD} . --train_file list.json", "list.json: the file is [], expected an object with 'data'"),
    (f"{SQUAD} . --train_file table.json", "table.json: data[0] has no 'paragraphs'"),
    (f"{SQUAD} . --train_file a.csv", "a.csv is damaged: expected JSON"),
    (f"{NER} --train_file none.conll", "cannot read none.conll"),
    (f"{NER} --train_file a.parquet", "a.parquet: no table is read from .parquet; save it as CoNLL, or as .jsonl"),
    (f"{SQUAD} . --train_file a.parquet", "no table is read from .parquet; save it as .json in SQuAD's format"),
    (f"{TAG} a.parquet --output o.csv", "no table is read from .parquet; save it as CoNLL, or as .jsonl"),
    (f"{NER} --train_file bad.conll", "bad.conll, line 2: the tag 'NN'; expected O, or B-, I-, E- or S-"),
    (f"{NER} --train_file a.conll --text_columns 4", "--text_columns 4: a.conll has 2 columns"),
    (f"{NER} --train_file a.jsonl", "a.jsonl, line 1: no 'tokens', its keys are ['body']"),
    (f"{NER} --data_dir none", "--data_dir none has no file called train"),
    (f"{GLUE} model --tag_names O", "--tag_names O: it is read only with --task ner"),
    ("probe pretrained --task ner --data_dir none", "--data_dir none has no file called train"),
    ("score --task ner --predictions a.conll", "a.conll has 2 columns: expected --dev_file, or the"),
    ("score --task ner --predictions a.conll --dev_file b.conll", "has 1 sentences, b.conll has 2"),
    ("probe pretrained --task ner --data_dir tagged --text_columns 3", "--text_columns 3: tagged/train.conll has 2"),
    (f"{OWN} a.csv --dev_file a.csv --data_dir .", "--data_dir is not for --task classification"),
    (f"{TAG} none.conll --output o.conll", "cannot read none.conll"),
    (f"{TAG} a.conll --output o.conll --encoding latin-1", "--encoding latin-1: a checkpoint ["),
    (f"{TAG} a.csv --output o.csv --keep label", "BertForTokenClassification'] does not read it"),
    (f"{TAG} ragged.conll --output o.conll", "ragged.conll, line 2: 1 columns, expected 2"),
    ("probe none --task sst2 --data_dir .", "none/checkpoints has no checkpoint"),
    ("probe pretrained --task sst2 --data_dir none", "--data_dir none has no train.tsv"),
    (f"{PREDICT} none.csv --output o.csv", "cannot read none.csv"),
    (f"{PREDICT} empty.csv --output o.csv", "empty.csv is empty; expected an example in each row"),
    (f"{PREDICT} a.parquet --output o.csv", "a.parquet: no table is read from .parquet; save it as .csv"),
    (f"{PREDICT} a.csv --output o.csv", "no column 'sentence', its columns are"),
    (f"{PREDICT} a.csv --output o.csv --keep text,text", "--keep names 'text' twice"),
    (f"{PREDICT} a.csv --output o.csv --doc_stride 8", "--doc_stride 8: a checkpoint ['BertForSeq"),
    (f"{PREDICT} - --null_score_threshold nan", "--null_score_threshold nan: expected a number"),
    ("score --task squad --predictions a --null_odds b --threshold nan", "--threshold nan: expected a number"),
    (f"{PREDICT} - --null_score_threshold 1", "--null_score_threshold 1.0: a checkpoint ['BertForSeq"),
    (f"{PREDICT} a.csv --output o.xlsx", "no table is written as .xlsx"),
    (f"{PREDICT} a.csv --output none/o.csv", "--output none/o.csv: there is no directory none"),
    (f"{PREDICT} a.csv --output a.csv", "--output a.csv is the input a.csv, which would be lost"),
    (f"{PREDICT} a.csv --vectors o.npy --output o.csv", "--output and --vectors are two places"),
    (f"{PREDICT} a.csv --vectors o.csv", "--vectors o.csv: expected a name that ends with .npy"),
    (f"{PREDICT} a.csv --vectors none/o.npy", "--vectors none/o.npy: there is no directory none"),
    (f"{PREDICT} - --vectors o.npy", "--vectors o.npy: it is read only with a file as --input"),
    (f"{PREDICT} a.csv --output o.csv --windows", "--windows: it is read only with --vectors"),
    (f"{PREDICT} a.csv --vectors o.npy --keep none", "--keep none: it is read only without --vectors"),
    (f"{PREDICT} a.csv --vectors o.npy", "expected one of text, label as --text_columns"),
    (f"{PREDICT} a.csv --vectors o.npy --text_columns text,label", "takes the texts of one column"),
    (f"{PREDICT} a.csv --vectors o.npy --text_columns text --prompt q", "--prompt q: the checkpoint has none"),
    (f"{PREDICT} a.csv --vectors o.npy --text_columns text --dimensions 0", "--dimensions 0: expected 1 to 16"),
    ("predict --checkpoint none --input -", "--checkpoint: there is none at none"),
    ("predict --checkpoint answers --input table.json --output o.json", "table.json: data[0] has no 'paragraphs'"),
    ("fill-mask --checkpoint run [MASK]", "--checkpoint: run is a run without a checkpoint yet"),
    ("evaluate --checkpoint model --data_dir none", "none is not a token store"),
    ("evaluate --checkpoint none --data_dir store", "--checkpoint: there is none at none"),
    ("import none o", "there is none at none"),
    ("import model store", "store exists; expected a new or empty directory"),
    ("export --checkpoint model --output store --format onnx", "store exists; expected a new or empty directory"),
    ("tune --recipe none.toml --data_dir store", "cannot read the recipe none.toml"),
    ("tune --recipe quickstart --data_dir none", "none is not a token store"),
    ("score --task sst2 --predictions none.tsv --dev_file none.tsv", "none.tsv"),
    ("inspect --data_dir none", "none is not a token store"),
    ("verify --data_dir none", "none is not a token store"),
    ("vocab --input none.txt --output v.txt", "--input none.txt: no such file"),
    ("vocab --input a.txt --output a.txt", "--output a.txt is the input a.txt, which would be lost"),
    ("vocab --input a.txt --output run", "--output run is a directory"),
    ("plan --recipe quickstart --plot none/o.svg", "--plot none/o.svg: there is no directory none"),
    ("bench step --recipe quickstart --data_dir none", "none is not a token store"),
    ("bench memory --recipe none.toml --limit 1GiB", "cannot read the recipe none.toml"),
    ("resume none", "none does not tell how it was started"),
    ("report none --output r.html", "none is not a run's directory, and there is none below it: found no run.json"),
    ("report run --watch --output x", "give one of them"),
    ("report run --watch --port 70000", "--port 70000: expected 1 to 65535"),
    ("report run --scaling none.json", "No such file"),
    ("report run --scaling toy.toml", "expected what `bert-horovod bench scaling"),
    # Values and their files.
    (f"{PREDICT} a.csv --output o.csv", "--text_columns names other columns"),
    ("evaluate --checkpoint run --data_dir store", "run is a run without a checkpoint yet"),
    (f"{PRETRAIN} store --set phase.0.learning_rat=1", "phase.0.learning_rat; did you mean learning_rate? known are: "),
    (f"{PRETRAIN} store --set phase.0.learning_rate=-1", "phase.0.learning_rate = -1: expected more than 0"),
    (f"{PRETRAIN} store --set model.num_attention_heads=3", "num_attention_heads = 3 does not divide"),
    ("import wordless made", "has no vocabulary; expected vocab.txt or tokenizer.json"),
    (f"{PREPARE} a.txt --input a.txt", "has no [PAD]"),
    (f"{PREPARE} vocab.txt --input a.txt --held_out 2", "--held_out 2.0"),
    (f"{PREPARE} vocab.txt --input a.txt --workers 1000000000", "expected 1 to 4096"),
    (f"{PREPARE} vocab.txt --input tables", "holds no text"),
    (f"{PREPARE} vocab.txt --input a.txt --recipe quickstart --set model.vocab_size=7", "vocab_size = 7, but"),
    ("prepare --input a.txt --output_dir out --tokenizer none", "--tokenizer none: expected a directory with a tokeni"),
    ("prepare --input a.txt --output_dir out --tokenizer tagged", "tagged: expected a directory with a tokenizer.json"),
    ("prepare --input a.txt --output_dir out --tokenizer xlm --cased", "--cased with --tokenizer xlm, which itself"),
    ("vocab --input empty.txt --output v.txt", "holds no words"),
    ("vocab --input a.txt --output v.txt --add 3", "--add: expected --extend BASE too"),
    (f"{EXTEND} vocab.txt --size 600", "--size with --extend: expected --add N"),
    (f"{EXTEND} vocab.txt --add 0", "--add 0: expected at least 1"),
    (f"{EXTEND} vocab.txt", "has no [unused...] tokens to replace; expected --add N"),
    (f"{EXTEND} nothing.txt", "cannot read the vocabulary nothing.txt"),
    (f"{EXTEND} vocab.txt --add 1 --output vocab.txt", "--output vocab.txt is the input vocab.txt"),
    (f"{EVALUATE} --every 2", "--every 2: it is read only with --pairs"),
    (f"{PAIRS} a.csv --rows 5", "--rows 5: it is read only with --data_dir"),
    (f"{PAIRS} a.csv --checkpoints all", "--checkpoints all: bert is no run's output_dir"),
    (f"{PAIRS} absent.jsonl", "cannot read absent.jsonl"),
    (f"{PAIRS} a.csv", "a.csv has no column 'sentence_good', its columns are"),
    (f"{PAIRS} a.csv --text_columns text", "--text_columns text: expected two, of the right and of the wrong"),
    (f"{PAIRS} pairs/short.jsonl", "short.jsonl, line 2: no 'sentence_bad' in it"),
    (f"{PAIRS} pairs/empty.jsonl", "empty.jsonl, line 2: sentence_bad is empty; expected two sentences"),
    (f"{PAIRS} pairs/equal.jsonl", "equal.jsonl, line 2: its two sentences are equal, as in 1 of 2 pairs"),
    (f"{PAIRS} conll", "--pairs conll: no tables there; expected files of pairs"),
    (f"{PROBED}=pairs", "execution.probe = 'pairs' and --probe_dir missing"),
    (
        f"{PRETRAIN} small --set model.vocab_size=64 --set execution.probe=sst2 --probe_dir glue own",
        "the one directory",
    ),
    (
        f"{PRETRAIN} small --set model.vocab_size=64 --set execution.probe=pairs --probe_dir pairs/equal.jsonl",
        "equal.jsonl, line 2: its two sentences are equal",
    ),
    (f"{EVALUATE} --rows 0", "--rows 0: expected at least 1"),
    (f"{EVALUATE} --sequence_length 33", "--sequence_length 33: expected 8 to 32"),
    (f"{PRETRAIN} store --max_steps -3", "--max_steps -3: expected at least 1"),
    (f"{INSPECT} 100000", "--row 100000: an epoch of the train rows has "),
    (f"{INSPECT} -1", "--row -1: an epoch of the train rows has "),
    (f"{INSPECT} 0 --rows 100000", "--row 0 --rows 100000: an epoch of the train rows has "),
    (f"{INSPECT} 0 --rows 0", "--rows 0: expected at least 1"),
    (f"{INSPECT} 0 --epoch -1", "--epoch -1: expected 0 to 999,999"),
    (f"{INSPECT} 0 --epoch 1000000", "--epoch 1000000: expected 0 to 999,999"),
    (f"{INSPECT} 0 --sequence_length 4", "phase.0.sequence_length = 4: expected at least 8"),
    (f"{INSPECT} 0 --recipe toy.toml --phase 2", "--phase 2: the recipe has 2 [[phase]] table"),
    (f"{INSPECT} 0 --recipe toy.toml --phase -1", "--phase -1: the recipe has 2"),
    (f"{INSPECT} 0 --recipe toy.toml --sequence_length 16", "--sequence_length 16 and --recipe toy.toml: the recipe"),
    (f"{INSPECT} 0 --recipe toy.toml --set model.vocab_size=63", "vocab_size = 63, but the token store small was made"),
    (f"{INSPECT} 0 --split held_out", "has no held-out sections"),
    ("recipes bert-bse", "no recipe bert-bse; did you mean bert-base?"),
    ("recipes --device abacus", "--device abacus: not known; known are V100"),
    ("recipes --device 'an abacus'", "by tflops and memory under [device]: plan --cluster FILE"),
    ("import renamed made", "vocab.txt has no [CLS] [SEP] [MASK]; expected [PAD] [UNK] [CLS] [SEP] [MASK]"),
    # fine-tuning
    (f"{GLUE} model --data_dir glue --max_steps 0", "--max_steps 0: expected at least 1"),
    (f"{GLUE} model --data_dir . --train_file glue/train.tsv --dev_file glue/dev.tsv", "train and dev files are"),
    (f"{GLUE} model --data_dir glue --doc_stride 64", "--doc_stride 64: it is read only with --task squad"),
    (f"{GLUE} model --data_dir glue --threshold dev", "--threshold dev: it is read only with --task multilabel"),
    (f"{GLUE} model --data_dir glue --dev_fraction 0.1", "0.1: it is read only with --task classification or reg"),
    (f"{SQUAD} glue --test_file t", "takes one --dev_file and no --test_file"),
    (f"{SQUAD} glue --early_stop 2", "only with another --task than squad"),
    (f"{LABELS} --dev_file own/dev.csv --threshold high", "high: expected a probability between 0 and 1, or dev"),
    (f"{LABELS} --dev_file own/dev.csv --label_columns a,b", "--label_column and --label_columns: labels stand in"),
    (f"{LABELS} --dev_file own/dev.csv --encoding latin7x", "--encoding latin7x: no such encoding of text"),
    (f"{LABELS} --dev_fraction 0.9", "--dev_fraction 0.9: expected more than 0 and at most 0.5"),
    (f"{PREDICT} a.csv", "--output: expected with a file as --input"),
    (f"{PREDICT} a.csv --output o.csv --text_columns text --threshold dev", "no dev set is read here"),
    (f"{PREDICT} a.csv --output o.csv --encoding latin1x", "no such encoding of text; expected a name such as"),
    (f"{PROBE} sst2", "--task sst2: expected --data_dir"),
    (f"{PROBE} sst2 --train_file a.csv", "--train_file a.csv: it is read only with --task classification"),
    (f"{PROBE} classification --threshold dev", "it is read only with --task multilabel"),
    (f"{PROBE} regression", "--task regression: expected --train_file, one --dev_file"),
    ("score --task sst2 --predictions a.csv --data_dir none", "none has no dev.tsv or dev.tsv.gz"),
    (f"{SCORE} sst2 --encoding x", "it is read only with --task classification or regression or multilabel"),
    (f"{SCORE} classification --label_separator x", "it is read only with --task multilabel"),
    (f"{SCORE} multilabel --null_odds x", "it is read only with --task squad"),
    # bench and tune
    ("bench step --steps 0", "--steps 0: expected at least 1"),
    ("bench step --phase 1", "--phase 1: the recipe has phases 0 to 0"),
    ("bench step --tuned absent.toml", "cannot read --tuned absent.toml"),
    ("bench step --set phase.0.sequence_length=1000", "phase.0.sequence_length = 1000: expected at most"),
    ("bench step --trace a.txt", "that is a file"),
    ("bench step --model mini --recipe r", "--recipe"),
    ("bench compute --model base", "did you mean step?"),  # names of earlier versions
    ("bench comm", "did you mean step --communication on off held_back?"),
    ("bench throughput", "did you mean step --data_dir DIR?"),
    ("bench step --rows 4", "instead of --rows give --set execution.micro_batch=N"),
    ("bench scaling --length 64", "instead of --length give --set phase.0.sequence_length=N"),
    ("bench step --profile p", "instead of --profile give --trace DIR"),
    ("bench scaling --recipe toy.toml", "which hosts"),
    ("bench scaling --recipe toy.toml -H a:1 --layout 2M1G", "--layout 2M1G: of 1 host"),
    ("bench scaling --recipe toy.toml -H a:1 --rounds 0", "--rounds 0: expected at least 1"),
    (f"{TUNE} -np 0", "-np 0: expected at least 1"),
    (f"{TUNE} -np 3 -H localhost:2", "-np 3 is more than the slots of the hosts, 2"),
    (f"{TUNE} -np 64", "global_batch = 4 is a batch that the ranks cannot share"),
    (f"{TUNE} --limit nan", "--limit nan: expected a number above 0"),
    (f"{TUNE} --set model.vocab_size=99", "model.vocab_size = 99, but the token store"),
    (f"{TUNE} --try micro_bach=1", "unknown key execution.micro_bach"),
    (f"{TUNE} --try optimizer.name=lamb", "--try optimizer.name=lamb: expected settings of [execution]"),
    # plan
    (f"{PLAN} --link 10Gb/s", "which device? Give --cluster, --device or --compute"),
    (f"{V100} --world_size 1 8", "--world_size 8: which link? Give --cluster, or --link as"),
    (f"{PLAN} --device K80", "--device K80: not known; known are V100S PCIe 32GB, "),
    (f"{V100} --set numerics.precision=bfloat16", "V100 does not accelerate "),
    (f"{V100} --spot 0.4 --hours_between_losses 1e300", "--hours_between_losses 1e+300: expected 0.01 to 100,000"),
    (f"{V100} --spot 0.4 --hours_between_losses 1e-9", "--hours_between_losses 1e-09: expected 0.01 to 100,000"),
    (f"{V100} --spot 0.4 --restart_s nan", "--restart_s nan: expected 0.001 to 1,000,000"),
    (f"{V100} --link 10", "--link 10: expected a rate above 0 as in 10Gb/s"),
    (f"{V100} --link none.json", "--link none.json: No such file"),
    (f"{V100} --world_size 0", "--world_size 0: expected at least 1"),
    (f"{V100} --efficiency 0", "--efficiency 0: expected a share"),
    (f"{V100} --plot plan.png", "--plot plan.png: expected a name that ends with .svg"),
    (f"{V100} --set phase.0.steps=0", "phase.0.steps"),
    (f"{V100} --link 10Gb/s --set phase.1.global_batch=6 --world_size 8", "global_batch = 6 is a batch that the"),
    (f"{T4S} --device V100", "--device with --cluster: write it into t4-10gbit.toml"),
    (f"{T4S} --link 1Gb/s", "--link RATE with --cluster"),
    (f"{T4S} --world_size 33", "--world_size 33: t4-10gbit.toml has 32 devices"),
    (f"{T4S} --compute none", "--compute none: No such file"),
    (f"{T4S} --link none.json", "--link none.json: No such file"),
    (f"{PLAN} --cluster none", "cannot read the cluster file none"),
    # launch
    ("hosts", "found no job of SLURM, PBS, LSF, Grid Engine, SkyPilot or Kubernetes"),
    ("launch -np 2", "expected a command to run"),
    ("launch -np 2 -- launch -np 2", "expected a command to run"),
    (f"launch -np 0 {RANKS}", "-np 0: expected at least 1"),
    (f"launch -np 99999999999 {RANKS}", "expected at most 4096 ranks on a host"),
    ("launch -np 2 -- pretrain --ouput_dir x", "--ouput_dir: did you mean --output_dir?"),
    (f"launch {RANKS}", "expected -np N for ranks on this host, or hosts"),
    (f"launch -np 2 -hostfile none {RANKS}", "cannot read the hostfile none"),
    (f"launch --discover 'exit 3' {RANKS}", "exit 3: exit code 3, no word; expected lines `host slots=N`"),
    (f"launch --discover 'echo a:1' -H a:1 {RANKS}", "--discover and -hostfile or -H name the hosts twice"),
    (f"launch -np 1 --wait_for_hosts 1m {RANKS}", "--wait_for_hosts 1m: it is read only with --restarts"),
    (f"launch -np 1 --restarts 1 --wait_for_hosts soon {RANKS}", "--wait_for_hosts soon: expected a number with s, m"),
    (f"launch -H a {RANKS}", "'a' is not of the form host:slots"),
    ("launch -np 1 --restarts -1 -- hosts", "--restarts -1"),
    ("doctor --expect_gbit 0", "--expect_gbit 0: expected more than 0"),
    ("doctor --ssh_port 0", "--ssh_port 0: expected 1 to 65535"),
    # Flags that the command would not read.
    ("inspect --data_dir none --rows 3", "--rows 3: it is read only with --row; leave it out"),
    ("inspect --data_dir none --split held_out", "--split held_out: it is read only with --row"),
    ("inspect --data_dir none --set data.seed=3", "--set data.seed=3: it is read only with --row"),
    ("prepare --input a --vocab v --output_dir out --set data.packing=false", "--set data.packing=false: it is read"),
    ("recipes bert-base --device V100", "--device V100: it is read only for the list, or with --json"),
    (f"{GLUE} model --data_dir none --seeds 3 --set data.seed=7", "--seeds 3: it is read only without --set data.seed"),
    (f"{GLUE} model --data_dir none --epochs 3 --set phase.0.steps=7", "--epochs 3.0: it is read only without --set"),
    (
        f"{GLUE} model --data_dir none --learning_rates 1,2 --set phase.0.learning_rate=1",
        "without --set phase.0.learning_rate",
    ),
    (f"{GLUE} model --data_dir none --text_columns a", "--text_columns a: it is read only with --task classification"),
    (f"{GLUE} model --data_dir none --train_file a --dev_file a --test_file a", "--data_dir none: it is read only"),
    (f"{PREDICT} - --keep none", "--keep none: it is read only with a file as --input"),
    (f"{PREDICT} a.json.gz --encoding latin-1", "latin-1: it is read only with a table as --input"),
    (f"{OWN} a.csv --dev_file b.jsonl --quoted_tsv", "--quoted_tsv: it is read only with a file that is not"),
    (f"{SCORE} sst2 --dev_file a.tsv --data_dir d", "--data_dir d: it is read only without --dev_file"),
    (f"{SCORE} regression --data_dir d", "--data_dir d: it is read only without --dev_file, for a task"),
    (f"{GLUE} model --data_dir none --train_file a.csv --quoted_tsv", "or JSON Lines (.jsonl) and with --task"),
    ("report none --port 8080", "--port 8080: it is read only with --watch"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Where the commands run."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    tmp_path = tmp_path_factory.mktemp("files")
    write_toy_store(tmp_path / "store")
    write_toy_store(tmp_path / "words", vocabulary=WORDS)
    write_toy_store(tmp_path / "small", vocabulary=SMALL_VOCABULARY)
    table = toy_recipe_table(phase={"steps": 1, "global_batch": 4}, execution={"micro_batch": 4})
    table["phase"].append(table["phase"][0] | {"sequence_length": 16})
    (tmp_path / "toy.toml").write_text(recipe_to_toml(recipe_from_table(table)))
    shutil.copy(PROJECT / "run" / "clusters" / "t4-10gbit.toml", tmp_path)
    write_glue(tmp_path / "glue", 8, 4)
    write_labels(tmp_path / "own", 40, 10)
    write_kind(tmp_path / "xlm", "xlm_robertas")
    for name in ("bert", "renamed", "wordless"):
        write_checkpoint(tmp_path / name)
    (tmp_path / "wordless" / "vocab.txt").unlink()
    words = ["[PAD]", "[UNK]", *(f"w{number}" for number in range(len(WORDS) - 2))]
    (tmp_path / "renamed" / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "a.txt").write_text("A cat.")
    (tmp_path / "a.csv").write_text("text,label\ngood,1\nbad,0\n")
    (tmp_path / "rank.csv").write_text("query,passage,label\na,A cat.,5\na,A.,0\n")
    (tmp_path / "same.csv").write_text("query,passage,label\na,A cat.,1\na,A.,1\n")
    (tmp_path / "bars.csv").write_text("text,labels\na,joy|love\nb,joy\n")
    (tmp_path / "none.jsonl").write_text('{"query": "a", "pos": ["A cat."]}\n{"query": "b", "pos": null}\n')
    for name, array in (("two", np.eye(2)), ("one", np.eye(1, 2)), ("wide", np.eye(2, 3)), ("whole", [[1, 0], [0, 1]])):
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "empty.csv").touch()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "a.XLSX").write_bytes(b"PK\x03\x04\x00")
    (tmp_path / "a.jsonl").write_text('{"body": "A cat."}\n')
    parquet.write_table(pyarrow.table({"body": ["A cat."]}), tmp_path / "a.parquet")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\ncat\n.\n")
    (tmp_path / "model").mkdir()
    write_checkpoint(tmp_path / "model", Classification(("bad", "good"), ("sentence",)))
    for name, file, content in (
        ("xlnet", "config.json", {"model_type": "xlnet"}),
        ("other", "tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}),
        ("tags", "config.json", {"architectures": ["BertForTokenClassification"], "model_type": "bert"}),
        ("answers", "config.json", {"architectures": ["BertForQuestionAnswering"], "model_type": "bert"}),
    ):
        shutil.copytree(tmp_path / "model", tmp_path / name)
        before = json.loads((tmp_path / name / file).read_text())
        (tmp_path / name / file).write_text(json.dumps(before | content))
    shutil.copytree(tmp_path / "model", tmp_path / "weightless")
    (tmp_path / "weightless" / "model.safetensors").unlink()
    tagged = {"a": "cat O\nsat B-X\n", "b": "cat O\n\nsat B-X\n", "bad": "cat O\nsat NN\n", "ragged": "a O\nb\n"}
    for name, text in tagged.items():
        (tmp_path / f"{name}.conll").write_text(text)
    (tmp_path / "tagged").mkdir()
    for name in ("train", "dev"):
        shutil.copy(tmp_path / "a.conll", tmp_path / "tagged" / f"{name}.conll")
    (tmp_path / "conll").mkdir()
    (tmp_path / "pairs").mkdir()
    seconds = {"short": {}, "empty": {"sentence_bad": " "}, "equal": {"sentence_bad": "a film"}}
    seconds |= {"long": {"sentence_bad": "a film " * 16}, "control": {"sentence_bad": "\u200b"}}
    for name, second in seconds.items():
        pairs = ({"sentence_good": "a film", "sentence_bad": "film a"}, {"sentence_good": "a film"} | second)
        (tmp_path / "pairs" / f"{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "table.csv").write_text("1,2")
    (tmp_path / "table.json").write_text('{"data": [{"text": "A cat."}]}')
    write_run(tmp_path / "run")
    (tmp_path / "pretrained" / "checkpoints" / "step-00000001").mkdir(parents=True)
    return tmp_path


# Told by what needs TensorFlow.
LATE = [
    ("bench step --memory much", "--memory much: expected a size in bytes"),
    ("export --checkpoint bert --output out --format savedmodel --with_tokenizer", "is a BertForPreTraining"),
    (
        "export --checkpoint bert --output out --format savedmodel --architecture BertForQuestionAnswering",
        "has the parameters of BertForPreTraining and BertForMaskedLM and",
    ),
    ("fill-mask --checkpoint wordless [MASK]", "has no vocabulary; expected vocab.txt or"),
    (
        f"{FILES} two.npy,two.npy --reranker model",
        "--reranker model: expected a checkpoint of finetune --task reranking",
    ),
    ("fill-mask --checkpoint bert 'The film was.'", "no [MASK] in the text 'The film was.'"),
    ("fill-mask --checkpoint bert '[MASK] was' 'The [mask] was.'", "no [MASK] in the text 'The [mask] was.'"),
    (f"fill-mask --checkpoint bert '[MASK] {'a film ' * 15}'", "a text has 33 tokens, [CLS] and [SEP] included, the"),
    (f"{PAIRS} pairs/long.jsonl", "line 2: the wrong sentence has 34 tokens, [CLS] and [SEP] included; expected 3 to"),
    (f"{PAIRS} pairs/control.jsonl", "control.jsonl, line 2: the wrong sentence has 2 tokens"),
    ("evaluate --checkpoint wordless --pairs a.csv --text_columns text,label", "wordless has no vocabulary; expected"),
    (f"{EXPORT} --format onnx --with_tokenizer", "an ONNX file holds no tokenizer; export a savedmodel"),
    (f"{PREDICT} a.csv --output o.csv --text_columns text --threshold 0.5", "give a text any number of labels"),
    ("export --checkpoint wordless --output out --format savedmodel", "has no vocabulary; expected vocab.txt or"),
    (f"{GLUE} model --data_dir glue --set phase.0.rate=1", "unknown key phase.0.rate"),
    (f"{GLUE} model --data_dir glue --epochs 0", "--epochs 0: expected more than 0"),
    (f"{GLUE} model --data_dir glue --early_stop 2 --set execution.evaluate_steps=0", "execution.evaluate_steps = 0"),
]


class Told(NamedTuple):
    """What a command said and did."""

    code: int | None
    output: str
    errors: str
    made: list[str]
    tensorflow: bool


PROGRAM = """
import contextlib, io, json, os, shlex, sys, traceback
from bert_horovod.__main__ import dispatch, parse
for words in json.loads(sys.argv[1]):
    before, late = set(os.listdir()), "tensorflow" in sys.modules
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            code = dispatch(parse(["bert-horovod", *shlex.split(words)]))
        except SystemExit as end:
            code = end.code
        except Exception:
            code = None
            traceback.print_exc()
    made = [*set(os.listdir()) - before]
    print(json.dumps([code, output.getvalue(), errors.getvalue(), made, not late and "tensorflow" in sys.modules]))
"""


@pytest.fixture(scope="module")
def told(files) -> dict[str, Told]:
    """What each command of the table told, all in one process."""
    commands = [words for words, _ in CASES]
    done = run_python("-c", PROGRAM, json.dumps(commands), cwd=files)
    assert done.returncode == 0, done.stderr
    lines = [Told(*json.loads(line)) for line in done.stdout.splitlines()]
    return dict(zip(commands, lines, strict=True))


@pytest.mark.parametrize(("words", "message"), CASES, ids=[words for words, _ in CASES])
def test_a_mistake_is_one_message_before_tensorflow_is_imported(told, words, message):
    told = told[words]
    assert message in told.errors
    assert told.code in (1, 2)
    assert told.errors.count("error:") == 1
    assert "Traceback" not in told.errors
    assert (told.output, told.made) == ("", [])
    assert not told.tensorflow


@pytest.mark.parametrize(("words", "message"), LATE, ids=[words for words, _ in LATE])
def test_what_is_told_later_is_one_message_too(files, monkeypatch, capsys, words, message):
    monkeypatch.chdir(files)
    before = set(os.listdir())
    assert dispatch(parse(["bert-horovod", *shlex.split(words)])) == 2
    told = capsys.readouterr().err
    assert (message in told, told.count("\n")) == (True, 1), told
    assert set(os.listdir()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bench step --world_size 4", "--world_size 4: 2 ranks are started"),
        (f"{PREDICT} a.csv --output o.csv", "horovodrun started 2 processes; only --vectors is shared by ranks"),
        (f"{MINE} --checkpoint model", "horovodrun started 2 processes; mine is one"),
    ],
)
def test_what_ranks_cannot_share_is_refused(files, monkeypatch, capsys, words, message):
    for name, value in (("RANK", "0"), ("SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "2")):
        monkeypatch.setenv(f"HOROVOD_{name}", value)
    test_what_is_told_later_is_one_message_too(files, monkeypatch, capsys, words, message)
