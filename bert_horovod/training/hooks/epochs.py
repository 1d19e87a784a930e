"""Prints how many epochs of the token store a run trains, and warns if these are too many to learn from."""

import sys

from bert_horovod.batches.text.mixture import Mixture
from bert_horovod.batches.text.mixture_table import mixture_lines
from bert_horovod.corpus.stores import train_tokens
from bert_horovod.training.hooks.base import Hook

# BERT was published with 40 epochs. Repeated text helps little after 16 epochs (Muennighoff et al. 2023, arXiv
# 2305.16264), but here each epoch has new masks.
MANY_EPOCHS = 40


class EpochHook(Hook):
    """Prints on rank 0 when a phase begins; warns once."""

    _warned = _told = False

    def phase(self) -> None:
        run, phase = self.run, self.run.phase
        if isinstance(phase.source, Mixture):
            self._of_stores(phase.source)
            return
        epochs_of_phase = phase.settings.steps * phase.settings.global_batch / phase.source.count
        total = run.recipe.positions(run.recipe.total_steps) / (phase.source.count * phase.settings.sequence_length)
        run.say(
            f"phase {phase.number}: {phase.settings.steps:,} steps are {epochs_of_phase:.1f} epochs of this token "
            f"store; the run's {run.recipe.total_steps:,} about {total:.1f}"
        )
        if total > MANY_EPOCHS and run.world.rank == 0 and not self._warned:
            self._warned = True
            print(
                f"bert-horovod: warning: the recipe's steps are about {total:.0f} epochs of this token store; expected "
                f"at most {MANY_EPOCHS}, as BERT was published with: a model learns by heart what it reads too often. "
                "Take fewer steps (--set phase.0.steps=N), more text, or a recipe for less of it (run/recipes)",
                file=sys.stderr,
                flush=True,
            )

    def _of_stores(self, mixture: Mixture) -> None:
        run, phase = self.run, self.run.phase
        if self._told:
            return
        self._told = True
        tokens = train_tokens(run.job.dataset.stores) | mixture.tokens
        rows = phase.settings.global_batch * phase.settings.steps
        read = sum(often * mixture.tokens.get(name, 0) for name, often in mixture.epochs(rows).items())
        for line in mixture_lines(run.recipe, tokens, read / (rows * phase.settings.sequence_length)):
            if line.startswith("warning") and run.world.rank == 0:
                print(f"bert-horovod: {line}", file=sys.stderr, flush=True)
            else:
                run.say(line)
        without = [name for name in run.job.dataset.stores if name not in phase.held_out.rows]
        if without:
            run.say(f"no held-out rows, so no held-out loss: {', '.join(without)}")
