"""The shapes of a run: which are compiled, and which are worth compiling before they are needed.

Each padded topology has its compiled steps. They are kept in a bounded table, and the likely ones
of the next topology update are compiled while the steps before it run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from barter_jax.core.schedule import PlannedUpdate
from barter_jax.core.topology import Topology
from barter_jax.training.ahead import Background, prediction_steps
from barter_jax.training.executables import Entry, ExecutableTable

# Compiling ahead takes the processor from the training. The likeliest shape is worth it if the
# compiler can do half of its work before the update, going by the last shape. A second guess is
# only if it will surely be done before it could be in the way of a first one: in half of the time,
# even if it takes as long as the slowest shape did (others may have come from a cache on disk).
FIRST_NEEDS, SECOND_NEEDS = 0.5, 2.0


class Shapes:
    """The compiled steps of a run by padded topology. For one thread only.

    No more than `capacity` of them are alive at any time, the one that is being compiled in the
    background included.

    Args:
      compile_entry: builds the entry of a padded topology, on any thread.
      schedule: the planned updates.
      capacity: shapes kept at most, at least 1.
      ahead: whether to compile ahead; else everything is compiled when it is needed.
      seconds_until: estimates when a later step will have been reached, at the rate so far.
    """

    def __init__(
        self,
        compile_entry: Callable[[Topology], Entry],
        schedule: Sequence[PlannedUpdate],
        *,
        capacity: int,
        ahead: bool,
        seconds_until: Callable[[int], float],
    ):
        self._table = ExecutableTable(compile_entry, capacity)
        self._capacity = capacity
        # With room for one shape only, a shape compiled ahead would push out the one in use.
        self._background = Background(compile_entry) if ahead and capacity > 1 else None
        self.looks = prediction_steps(schedule) if self._background else {}
        self._seconds_until = seconds_until
        self._likely: tuple[Topology, ...] = ()
        self._deadline = 0
        self._ready = 0

    def __len__(self) -> int:
        """Shapes that are compiled."""
        return len(self._table)

    def take(self, physical: Topology) -> tuple[Entry, bool]:
        """The compiled steps of a shape, which is the one in use from now on.

        Waits where it is being compiled, and compiles it here where nobody has begun.

        Returns:
          The entry, and whether it was ready.

        Raises:
          Exception: whatever the compile failed with.
        """
        self._likely = ()
        ready = physical in self._table
        if not ready:
            under_way = self._background.shape if self._background else None
            if under_way == physical:
                ready = self._background.done
                self._fetch()
            else:
                self._table.reserve(1 + (under_way is not None))
        self._ready += ready
        return self._table.get(physical), ready

    def worthwhile(self, update: int) -> bool:
        """Whether there is time to compile for the update at a step, before it comes."""
        needs = FIRST_NEEDS * self._table.last_compile_seconds
        return self._seconds_until(update) >= needs

    def request(self, likely: Sequence[Topology], step: int) -> None:
        """Has likely shapes of the next update compiled, in the place of those asked for before.

        `collect` begins with the first, and with the second once the first is done, if there is
        room and clearly time for it.

        Args:
          likely: shapes, the likeliest first; at least one. Those beyond the second are ignored.
          step: steps done, one of `looks`.
        """
        self._likely = tuple(likely)
        # By then a better first guess may be there to be compiled.
        self._deadline = min(s for s in (*self.looks, self.looks[step]) if s > step)

    def collect(self, current: Topology) -> None:
        """Takes in what has been compiled in the background, and goes on with what is next.

        Args:
          current: the shape in use, which is not dropped to make room.

        Raises:
          Exception: whatever a background compile failed with.
        """
        if self._background is None:
            return
        if self._background.done:
            self._fetch()
        wanted = self._next() if self._background.shape is None else None
        if wanted is not None:
            # The most recently used are the last to be dropped.
            for kept in (self._likely[0], current):
                if kept in self._table:
                    self._table.get(kept)
            self._table.reserve(1)
            self._background.begin(wanted)

    def totals(self) -> dict[str, float]:
        """What was compiled: shapes, updates whose shape was ready, seconds in the background."""
        seconds = self._background.seconds if self._background else 0.0
        return {
            "shapes": self._table.compiled,
            "updates_ready": self._ready,
            "background_seconds": round(seconds, 3),
        }

    def close(self) -> None:
        """Waits for what is being compiled: it cannot be interrupted."""
        if self._background:
            self._background.close()

    def _fetch(self) -> None:
        physical = self._background.shape
        self._table.put(physical, self._background.fetch())

    def _next(self) -> Topology | None:
        """What to compile now, if anything."""
        if not self._likely:
            return None
        first, *others = self._likely
        if first not in self._table:
            return first
        if not others or others[0] in self._table:
            return None
        # The shape in use and the first guess have their places.
        room = self._capacity > 2
        needs = SECOND_NEEDS * self._table.slowest_compile_seconds
        return others[0] if room and self._seconds_until(self._deadline) >= needs else None
