"""Serves traces in simulated time: any policy, any step-time profile, continuous batching.

Requests join as others leave, each row is drafted for, judged and decided by the server's own code;
what a step yields comes from the trace, how long it takes from the profile. Prefill costs nothing
here, for any policy alike. Everything is simulated: figures of this module are not measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.acceptance import CacheAcceptance, ModelAcceptance
from hybridspec.gate.base import Decision, Policy, StepTime, StepView
from hybridspec.gate.cost import StepTimeModel
from hybridspec.gate.history import RequestHistory, agreement
from hybridspec.gate.joint import MOST_ROWS, Joined, JointAcceptance
from hybridspec.gate.observations import Observations
from hybridspec.gate.replay import Drafter, look_ahead
from hybridspec.gate.source import Source
from hybridspec.gate.step_outcome import StepOutcome, outcome
from hybridspec.gate.traces import Trace

# (rows with a draft, the number of each one's trace) to their survival curves.
Survival = Callable[[Observations, NDArray[np.int64]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulated server did.

    Attributes:
        tokens: output tokens of all decode steps.
        seconds: simulated time of all decode steps.
        steps: decode steps.
        accepted: accepted draft tokens, bonus excluded.
        rows: rows by source, in the order of :class:`Source`; of those with two branches, the one
            that was accepted.
        tpot: float64 ``[requests]``, simulated seconds per output token after the first.
        trees: steps in which a row had two branches.
    """

    tokens: int
    seconds: float
    steps: int
    accepted: int
    rows: tuple[int, int, int]
    tpot: NDArray[np.float64]
    trees: int = 0

    @property
    def rate(self) -> float:
        """Tokens per simulated second; 0 if nothing was decoded."""
        return self.tokens / self.seconds if self.seconds else 0.0


class Oracle:
    """Knows what would be accepted, and chooses width and sources for most tokens per second."""

    name = "oracle"

    def __init__(self, ladder: Sequence[int], cost: StepTime) -> None:
        self._widths = np.array(ladder, np.int32)
        self._cost = cost

    def choose(
        self, cache: NDArray[np.int32], model: NDArray[np.int32], context_tokens: int
    ) -> Decision:
        """The best decision for true accepted lengths of both drafts, int32 ``[rows]`` each."""
        best_rate, best = -1.0, None
        for forward in (False, True):
            gains = np.maximum(cache, model) if forward else cache
            for width in self._widths.tolist():
                tokens = len(cache) + int(np.minimum(gains, width - 1).sum())
                rate = tokens / self._cost.predict(len(cache), width, context_tokens, forward)
                if rate > best_rate:
                    best_rate, best = rate, (width, forward)
        assert best is not None
        width, forward = best
        use_model = (model > cache) if forward else np.zeros(len(cache), np.bool_)
        length = np.minimum(np.where(use_model, model, cache), width - 1)
        source = np.where(use_model, Source.MODEL, np.where(cache > 0, Source.CACHE, Source.NONE))
        return Decision(
            width,
            source.astype(np.int8),
            np.where(source == Source.NONE, 0, length).astype(np.int32),
        )


def simulate(
    traces: Sequence[Trace],
    decider: Policy | Oracle,
    cost: StepTime,
    *,
    batch: int,
    drafter: Drafter | None,
    survival: Survival | None = None,
    model_steps: int = 4,
    model_free: int = 0,
    k: int = 32,
    merges: bool = False,
    learns: StepTimeModel | None = None,
) -> Outcome:
    """Decode all traces.

    Args:
        traces: in order of arrival; EAGLE3's lengths must be known unless ``model_steps`` is 0.
        decider: a policy, or the oracle.
        cost: seconds of a step, true and as far as the policy knows.
        batch: requests at a time.
        drafter: empty suffix cache; None: there are no cache drafts.
        survival: a gate's curves of rows with a draft; None: a table learned on the way.
        model_steps: EAGLE3's draft steps; 0 for no head.
        model_free: leading tokens of its draft that need no forward.
        k: longest cache draft.
        merges: whether both drafts of a row may be verified side by side.
        learns: the policy's step times, to be told every step's true time; None: it knows what it
            knows.

    Raises:
        ValueError: EAGLE3's lengths are missing.
    """
    if model_steps and any(trace.model_accepted is None for trace in traces):
        raise ValueError("simulation: a trace does not know EAGLE3's accepted lengths")
    run = _Simulation(traces, decider, cost, batch, drafter, survival, model_steps, model_free, k)
    if merges and model_steps and drafter is not None:
        run.merge()
    return run.serve(learns)


class _Simulation:
    def __init__(
        self,
        traces: Sequence[Trace],
        decider: Policy | Oracle,
        cost: StepTime,
        batch: int,
        drafter: Drafter | None,
        survival: Survival | None,
        model_steps: int,
        model_free: int,
        k: int,
    ) -> None:
        self._traces = [trace for trace in traces if len(trace.output_ids) > 1]
        self._decider, self._cost, self._drafter, self._k = decider, cost, drafter, k
        self._survival = survival
        self._steps, self._free = model_steps, model_free
        self._trace = np.full(batch, -1, np.int64)
        self._position = np.zeros(batch, np.int64)
        self._history = RequestHistory(batch)
        self._model = ModelAcceptance(batch, model_steps)
        self._table = CacheAcceptance(k)
        self._buffer = Observations.allocate(batch, k)
        self._next = 0
        self._began = np.zeros(batch)
        self._tpot: list[float] = []
        self._joint: JointAcceptance | None = None
        self._joined: Joined | None = None

    def merge(self) -> None:
        """Let rows have two branches."""
        self._joint = JointAcceptance(self._steps)

    def serve(self, learns: StepTimeModel | None) -> Outcome:
        tokens = steps = accepted_tokens = trees = 0
        seconds = 0.0
        sources = np.zeros(3, np.int64)
        while True:
            self._admit(seconds)
            slots = np.flatnonzero(self._trace >= 0)
            if not len(slots):
                rows = (int(sources[0]), int(sources[1]), int(sources[2]))
                tpot = np.array(self._tpot)
                return Outcome(tokens, seconds, steps, accepted_tokens, rows, tpot, trees)
            obs, truth, left = self._look(slots)
            cache = agreement(obs.tokens, obs.length, truth, left)
            model = self._model_truth(slots)
            context = int(obs.prompt_length.sum() + obs.generated_length.sum())
            decision = self._decide(slots, obs, cache, model, context)
            forward = decision.model_length > self._free
            shape = (len(slots), decision.width, context, forward)
            took = self._cost.predict(*shape)
            seconds += took
            if learns is not None:
                learns.observe(*shape, took)
            done = _verified(decision, cache, model)
            count = np.minimum(done.accepted + 1, left).astype(np.int32)
            self._learn(slots, obs, truth, count, decision, done, model)
            trees += done.beside is not None
            self._advance(slots, truth, count, left, seconds)
            tokens += int(count.sum())
            accepted_tokens += int(np.minimum(done.accepted, count).sum())
            sources += np.bincount(done.source, minlength=3)
            steps += 1

    def _admit(self, now: float) -> None:
        for slot in np.flatnonzero(self._trace < 0):
            if self._next == len(self._traces):
                return
            trace = self._traces[self._next]
            if self._drafter is not None:
                self._drafter.start(str(self._next), trace.prompt_ids, trace.scope)
                self._drafter.extend(str(self._next), trace.output_ids[:1])
            self._trace[slot], self._position[slot] = self._next, 1
            self._began[slot] = now
            fresh = np.array([slot])
            self._history.reset(fresh)
            self._model.reset(fresh)
            self._next += 1

    def _look(
        self, slots: NDArray[np.intp]
    ) -> tuple[Observations, NDArray[np.int32], NDArray[np.int32]]:
        obs = self._buffer.head(len(slots))
        truth = np.empty((len(slots), self._k + 1), np.int32)
        left = np.empty(len(slots), np.int32)
        if self._drafter is not None:
            self._drafter.draft([str(number) for number in self._trace[slots]], obs, self._k)
        for row, slot in enumerate(slots):
            trace, position = self._traces[int(self._trace[slot])], int(self._position[slot])
            left[row] = look_ahead(trace, position, truth[row])
            obs.put(row, trace.output_ids[position - 1], len(trace.prompt_ids), position)
        obs.history[:] = self._history.read(slots)
        return obs, truth, left

    def _model_truth(self, slots: NDArray[np.intp]) -> NDArray[np.int32]:
        found = np.zeros(len(slots), np.int32)
        if not self._steps:
            return found
        for row, slot in enumerate(slots):
            known = self._traces[int(self._trace[slot])].model_accepted
            assert known is not None
            found[row] = known[self._position[slot]]
        return np.minimum(found, self._steps)

    def _decide(
        self,
        slots: NDArray[np.intp],
        obs: Observations,
        cache: NDArray[np.int32],
        model: NDArray[np.int32],
        context: int,
    ) -> Decision:
        if isinstance(self._decider, Oracle):
            return self._decider.choose(cache, model, context)
        view = StepView(
            cache_length=obs.length,
            cache_score=obs.score,
            survival=self._curves(slots, obs),
            model_survival=self._model.survival(slots),
            model_free=self._free,
            context_tokens=context,
        )
        self._joined = None
        if self._joint is not None and view.survival is not None and len(slots) <= MOST_ROWS:
            # Traces hold no tokens of EAGLE3: whether both begin alike is not known here.
            self._joined = joined = self._joint.join(
                obs.tokens, obs.length, view.survival, self._model.rates(slots)
            )
            view = replace(
                view,
                survival=joined.survival,
                model_survival=joined.model_survival,
                overlap=joined.overlap,
            )
        return self._decider.decide(view)

    def _curves(self, slots: NDArray[np.intp], obs: Observations) -> NDArray[np.float32]:
        curves = np.zeros((obs.rows, self._k), np.float32)
        drafted = np.flatnonzero(obs.length)
        if len(drafted):
            rows = obs.take(drafted)
            if self._survival is not None:
                curves[drafted] = self._survival(rows, self._trace[slots[drafted]])
            else:
                curves[drafted] = self._table.survival(rows.match_length, rows.probs)
        return curves

    def _learn(
        self,
        slots: NDArray[np.intp],
        obs: Observations,
        truth: NDArray[np.int32],
        count: NDArray[np.int32],
        decision: Decision,
        done: StepOutcome,
        model: NDArray[np.int32],
    ) -> None:
        matched = self._history.update(
            slots, obs.tokens, obs.length, truth, count, done.source, done.accepted
        )
        drafted = obs.length > 0
        self._table.observe(
            obs.match_length[drafted], obs.length[drafted], matched[drafted], count[drafted]
        )
        tried = done.model_tried
        if self._free:
            tried = np.maximum(tried, 1)  # judged in every step, whatever is verified
        hits = np.minimum(model, tried)
        used = tried > 0
        self._model.observe(slots[used], tried[used], hits[used])
        if self._joint is not None and self._joined is not None:
            self._joint.observe(
                self._joined,
                np.arange(len(slots)),
                matched=matched,
                cache_tried=np.where(decision.source == Source.CACHE, decision.length, 0),
                model_hits=hits,
                model_tried=tried,
            )

    def _advance(
        self,
        slots: NDArray[np.intp],
        truth: NDArray[np.int32],
        count: NDArray[np.int32],
        left: NDArray[np.int32],
        now: float,
    ) -> None:
        rids = [str(number) for number in self._trace[slots]]
        if self._drafter is not None:
            self._drafter.extend_all(rids, [truth[row, :new] for row, new in enumerate(count)])
        for row, slot in enumerate(slots):
            ended = count[row] == left[row]
            self._position[slot] += count[row]
            if ended and self._drafter is not None:
                self._drafter.finish(rids[row])
            if ended:
                decoded = len(self._traces[int(self._trace[slot])].output_ids) - 1
                self._tpot.append(float(now - self._began[slot]) / decoded)
                self._trace[slot] = -1


def _verified(
    decision: Decision, cache: NDArray[np.int32], model: NDArray[np.int32]
) -> StepOutcome:
    """What comes of a decision where so much of both drafts is true, int32 ``[rows]`` each."""
    accepted = np.minimum(np.where(decision.source == Source.CACHE, cache, model), decision.length)
    if decision.branch is None:
        return outcome(decision, accepted, None)
    hits = np.minimum(model, decision.branch)
    longer = np.maximum(accepted, hits)
    return outcome(decision, longer, np.stack((hits > accepted, hits)))
