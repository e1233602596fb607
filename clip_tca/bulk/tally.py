"""What a run of ``adapt`` counts, and whether that is enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clip_tca.bulk.reading import CheckedBlock


@dataclass
class Tally:
    """Counts of a run: rows used, rows left out by shard, correct predictions after and before; and seconds.

    ``same`` is the row that all of the first pass were equal to; None if they differ, or there were none. ``kept`` is
    the number of shards that an earlier run has finished.
    """

    rows: int = 0
    bad: dict[int, list[int]] = field(default_factory=dict)
    right: int = 0
    right_before: int = 0
    fitting_seconds: float = 0.0
    adapting_seconds: float = 0.0
    same: np.ndarray | None = None
    kept: int = 0

    def __add__(self, other: Tally) -> Tally:
        """The counts of two shards, or of two runs."""
        return Tally(
            self.rows + other.rows,
            {**self.bad, **other.bad},
            self.right + other.right,
            self.right_before + other.right_before,
            self.fitting_seconds + other.fitting_seconds,
            self.adapting_seconds + other.adapting_seconds,
            kept=self.kept + other.kept,
        )

    def look(self, z: np.ndarray) -> None:
        """Add rows ``(n, d)`` of the first pass, before they are counted."""
        if len(z) and (self.rows == 0 or self.same is not None):
            first = z[0].copy() if self.same is None else self.same
            self.same = first if bool((z == first).all()) else None

    def leave_out(self, checked: CheckedBlock) -> None:
        """Add the bad rows of a block."""
        if len(checked.bad):
            self.bad.setdefault(checked.shard, []).extend(checked.bad.tolist())

    def counts(self) -> dict[str, Any]:
        """The counts that a later run needs if it goes on after this one, as JSON can hold them."""
        bad = {str(shard): rows for shard, rows in self.bad.items()}
        return {"rows": self.rows, "bad": bad, "right": self.right, "right_before": self.right_before}

    @classmethod
    def of(cls, counts: dict[str, Any]) -> Tally:
        """What :meth:`counts` gave."""
        bad = {int(shard): [int(row) for row in rows] for shard, rows in counts["bad"].items()}
        return cls(int(counts["rows"]), bad, int(counts["right"]), int(counts["right_before"]))

    def check_rows(self, least: int) -> None:
        """Raise ValueError if there are fewer rows."""
        if self.rows < least:
            raise ValueError(
                f"embeddings: {self.rows} {'row' if self.rows == 1 else 'rows'} that can be used; "
                f"at least {least} {'is' if least == 1 else 'are'} needed"
            )

    def check_variance(self) -> None:
        """Raise ValueError if all rows are the same."""
        if self.same is not None:
            raise ValueError(
                f"embeddings: all {self.rows} rows are the same, and nothing can be learned from them; "
                "check how they were made"
            )
