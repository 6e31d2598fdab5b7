"""What one decode step proposes: cache drafts, predictions and the policy's choice, as arrays.

Everything here runs on the host and touches no device. A part that raises is left out of the step,
counted, and logged once: a running request never fails because our part failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from prometheus_client import REGISTRY, CollectorRegistry

from hybridspec.adapters.base import Source
from hybridspec.adapters.sglang.acceptance_watch import AcceptanceWatch
from hybridspec.adapters.sglang.cache_drafts import CacheDrafts
from hybridspec.adapters.sglang.config import HybridConfig
from hybridspec.adapters.sglang.deferral import Deferral, Extend
from hybridspec.adapters.sglang.gate_swaps import GateSwaps
from hybridspec.adapters.sglang.metrics import HybridMetrics
from hybridspec.adapters.sglang.pending_step import PendingStep
from hybridspec.adapters.sglang.predictor import Predictor
from hybridspec.adapters.sglang.request_report import RequestReport, attach
from hybridspec.adapters.sglang.requests import Followed, FollowedRequests, Relayed
from hybridspec.adapters.sglang.step_plan import StepPlan
from hybridspec.adapters.sglang.step_profile import starting_times
from hybridspec.adapters.sglang.step_recorder import StepRecorder
from hybridspec.adapters.sglang.step_times import StepTimes
from hybridspec.gate.acceptance import ModelAcceptance
from hybridspec.gate.base import Decision, StepView
from hybridspec.gate.cost import Hopeful
from hybridspec.gate.goodput import expected_length
from hybridspec.gate.joint import MOST_ROWS, Joined, JointAcceptance
from hybridspec.gate.observations import Observations
from hybridspec.gate.policy import make_policy
from hybridspec.gate.step_outcome import outcome

logger = logging.getLogger(__name__)

T = TypeVar("T")

SLOTS = 64
"""Request slots at first; they double when more requests run at once."""
FREE_MODEL_TOKENS = 1
"""Tokens of EAGLE3's chain that need no draft forward: draft-extend has predicted the first."""
PROBE_EVERY = 64
"""Decode steps of which one is decided in hope (see :class:`hybridspec.gate.cost.Hopeful`)."""


class StepPlanner:
    """Plans decode steps and learns from their outcomes. One per scheduler process, not shared."""

    def __init__(
        self,
        settings: HybridConfig,
        *,
        model_steps: int,
        device: str,
        times_steps: bool,
        most_rows: int | None = None,
        model: str = "",
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        """Set up all parts.

        Args:
            settings: checked at start-up (see ``validate.py``).
            model_steps: EAGLE3's draft steps.
            device: ``cpu`` or a CUDA device; picks the step-time profile to start from.
            times_steps: whether wall times of steps are true and may change decisions.
            model: name of the target, for traces.
            most_rows: most requests that run at once, if known.
            registry: where the counters are kept.
        """
        self._model_steps = model_steps
        self._times_steps = times_steps
        self._cache = CacheDrafts(settings)
        self._requests = FollowedRequests(SLOTS, self._vanished)
        widest = settings.widths[-1] - 1
        self._predictor = Predictor(settings.gate, widest, SLOTS, settings.gate_device)
        self._depth = max(widest, self._predictor.depth)
        self._acceptance = ModelAcceptance(SLOTS, model_steps)
        self._joint: JointAcceptance | None = None
        self._report = RequestReport(SLOTS)
        self._watch = AcceptanceWatch()
        self._cost, self._profiler = starting_times(
            settings, device, model_steps=model_steps, most_rows=most_rows, timed=times_steps
        )
        self._policy = make_policy(
            settings.policy, ladder=settings.widths, tau=settings.tau, cost=self._cost
        )
        self._probing = make_policy(
            settings.policy, ladder=settings.widths, tau=settings.tau, cost=Hopeful(self._cost)
        )
        self._model_positions = np.arange(model_steps, dtype=np.int32)
        self._deferral = Deferral(settings.draft_extend_after, uses_model=self._policy.uses_model)
        gate = self._predictor.gate
        if gate is not None:
            logger.info("hybridspec: gate %s runs on %s", gate.manifest.sha256[:12], gate.provider)
        self.metrics = HybridMetrics(settings.widths, settings.policy, gate, registry)
        self._times = StepTimes(self._cost, self.metrics, rests=self._deferral.rests)
        self._swaps: GateSwaps | None = None
        if settings.gate is not None and settings.gate_poll_s > 0:
            self._swaps = GateSwaps(
                Path(settings.gate),
                self._predictor,
                self.metrics,
                poll_s=settings.gate_poll_s,
            )
        self._recorder: StepRecorder | None = None
        if settings.trace_dir is not None:
            self._recorder = StepRecorder(
                settings,
                settings.trace_dir,
                features=gate.features if gate else None,
                model=model,
                lost=self.metrics.traces_lost,
            )
        self._buffer = Observations.allocate(SLOTS, self._depth)
        self._pending: PendingStep | None = None
        self._logged: set[str] = set()
        self._steps = 0

    def merge(self) -> None:
        """Let rows verify both drafts side by side from now on."""
        if self._model_steps and self._policy.uses_model:
            self._joint = JointAcceptance(self._model_steps)
            self.metrics.merges.set(1)

    def plan(
        self,
        requests: Sequence[Any],
        foretold: NDArray[np.int64] | None = None,
        relayed: Mapping[str, Relayed] = MappingProxyType({}),
    ) -> StepPlan:
        """Decide one step of a batch.

        Args:
            requests: SGLang's ``Req`` objects, in row order.
            foretold: int64 ``[rows]``, EAGLE3's prediction of each row's next token, where the host
                can have it for nothing; ignored while the draft head is behind. It is judged
                whatever is verified, so EAGLE3's acceptance stays known while it is not used.
            relayed: by request id, what the newest batch produced (overlap scheduling).
        """
        if self._profiler is not None:
            decision = self._profiler.decide(requests)
            if decision is not None:
                return _carry_out(decision, self._buffer.head(len(requests)))
            self._guarded("step_times", self._profiler.conclude, None)
            self._profiler = None
        rows, new = self._requests.rows(requests, relayed)
        slots = np.array([row.slot for row in rows], np.int64)
        if self._swaps is not None:
            self._swaps.between_steps()
        self._grow(len(rows))
        self._settle_tokens(rows, relayed)
        self._reset(slots[np.array(new)])
        observations = self._observe(rows, slots)
        behind = self._deferral.behind
        if behind:
            foretold = None
        view, joined = self._view(rows, slots, observations, foretold)
        decision, extend = self._decide(view, behind)
        plan = replace(_carry_out(decision, observations), extend=extend)
        self.metrics.step(plan)
        self.metrics.draft_extend(extend)
        self._pending = PendingStep(
            rows,
            slots,
            plan,
            observations,
            view.context_tokens,
            foretold,
            self._steps,
            behind and extend is Extend.NOW,
            expected_length(view, decision),
            joined,
        )
        self._steps += 1
        return plan

    def _decide(self, view: StepView, behind: bool) -> tuple[Decision, Extend]:
        """The policy's decision, and whether the draft head is kept up to date after it."""
        probes = self._times_steps and self._steps % PROBE_EVERY == PROBE_EVERY - 1
        policy = self._probing if probes else self._policy

        def decide(view: StepView) -> Decision:
            return self._guarded("policy", lambda: policy.decide(view), _plain(view.rows))

        decision = decide(view)
        wanted = bool(decision.model_length)
        if wanted and behind:
            # The head lacks the newest tokens: it is brought up to date and drafts from the next
            # step on.
            decision = decide(replace(view, model_survival=view.model_survival[:, :0]))
        return decision, self._deferral.next(wanted, view.rows, decision.width)

    def settle(self, accepted: Sequence[int], branches: NDArray[np.int32] | None = None) -> bool:
        """Take in the accepted lengths (bonus excluded, row order) of the planned step; whether
        they were not known yet.

        ``branches``: of a plan with branches, int32 ``[2, rows]``: whether EAGLE3's branch was
        accepted, and how many tokens of EAGLE3's draft came true.
        """
        pending = self._pending
        if pending is None or pending.outcome is not None or len(accepted) != len(pending.rows):
            return False
        plan = pending.plan
        done = pending.outcome = outcome(plan, np.array(accepted, np.int32), branches)
        self.metrics.outcome(done.source, done.accepted, pending.expected)
        self._report.add(pending.slots, done.source, done.proposed, done.accepted)
        if (beside := done.beside) is not None:
            self.metrics.merged(done.source[beside.rows], done.accepted[beside.rows])
            self._report.propose(pending.slots[beside.rows], beside.source, beside.proposed)
        # The longer of two branches says nothing of how good drafts are.
        alone = slice(None) if plan.branch is None else plan.branch == 0
        for source, level in self._watch.add(
            done.source[alone], done.proposed[alone], done.accepted[alone]
        ):
            self._alarm(source, level)
        tried = done.model_tried > 0
        self._acceptance.observe(
            pending.slots[tried], done.model_tried[tried], done.model_hits[tried]
        )
        if (recorder := self._recorder) is not None:
            known = pending.observations
            self._guarded(
                "traces",
                lambda: recorder.step(pending.number, pending.rows, known, plan.width, done),
                None,
            )
        return True

    def _alarm(self, source: Source, level: str) -> None:
        self.metrics.acceptance_alarm(source, level)
        logger.warning(
            "hybridspec: the acceptance rate of %s drafts jumped to about %s; counted in "
            "hybridspec_acceptance_alarms_total",
            source.name.lower(),
            "nothing" if level == "low" else "all",
        )

    def ran(self, started: float, ended: float, extend: float) -> None:
        """Take in when the planned step ran, ``time.perf_counter()`` seconds, and how many of these
        its draft-extend took."""
        seconds = self._times.took(started, ended)
        pending = self._pending
        if self._profiler is not None:
            self._profiler.ran(seconds, extend)
        elif self._times_steps and pending is not None:
            self._times.learn(pending.as_ran(), seconds, extend)

    def interrupted(self) -> None:
        """Something else ran (a prefill)."""
        self._times.interrupted()

    def finish(self, rid: str) -> None:
        """A request ended; its response stays in the shared tree unless it was aborted."""
        row = self._requests.pop(rid)
        if row is None:
            return
        self._guarded("suffix_cache", lambda: self._cache.finish(rid, row), None)
        self._show_cache()
        attach(row.request, self._report.of(row.slot))
        if (recorder := self._recorder) is not None:
            self._guarded("traces", lambda: recorder.finish(rid, row), None)

    def close(self) -> None:
        """Write the traces that wait, and look at the gate's folder no more."""
        if self._recorder is not None:
            self._recorder.close()
        if self._swaps is not None:
            self._swaps.close()

    def _vanished(self, rid: str) -> None:
        self._cache.discard(rid)
        if self._recorder is not None:
            self._recorder.drop(rid)

    def flush(self) -> None:
        """Forget every cached continuation (changed weights); running requests go on."""
        self._guarded("suffix_cache", self._cache.flush, None)
        self._show_cache()

    def clear(self) -> None:
        """No request runs or waits, and all is forgotten; requests too that were aborted while they
        waited to be resumed, of which SGLang tells nobody."""
        self._requests.clear()
        self.flush()

    def _show_cache(self) -> None:
        stats = self._cache.stats
        self.metrics.suffix_cache(stats.active_requests, stats.bytes)

    def _settle_tokens(self, rows: list[Followed], relayed: Mapping[str, Relayed]) -> None:
        """Extend trees by what the last step produced, and teach the predictor with it."""
        fresh = [row.new_tokens(relayed.get(row.request.rid)) for row in rows]
        pending, self._pending = self._pending, None
        self._guarded("suffix_cache", lambda: self._cache.extend(rows, fresh), None)
        if pending is None or pending.outcome is None:
            return
        at = {id(row): index for index, row in enumerate(rows)}
        kept = [i for i, row in enumerate(pending.rows) if id(row) in at]
        if kept:
            tokens = [fresh[at[id(pending.rows[i])]] for i in kept]
            self._guarded("gate", lambda: self._teach(pending, np.array(kept), tokens), None)

    def _teach(
        self, pending: PendingStep, kept: NDArray[np.int64], tokens: list[NDArray[np.int32]]
    ) -> None:
        done = pending.outcome
        assert done is not None
        matched = self._predictor.learn(
            pending.slots[kept],
            pending.observations.take(kept),
            tokens,
            done.source[kept],
            done.accepted[kept],
        )
        tried, hits = done.model_tried[kept], done.model_hits[kept]
        if pending.foretold is not None:
            # Rows that verified EAGLE3's draft were counted when they settled.
            first = np.array([row[0] if len(row) else -1 for row in tokens])
            judged = (first >= 0) & (tried == 0)
            hit = (first == pending.foretold[kept])[judged].astype(np.int32)
            self._acceptance.observe(pending.slots[kept][judged], np.ones_like(hit), hit)
            tried[judged], hits[judged] = 1, hit
        if self._joint is not None and pending.joined is not None:
            of_cache = pending.plan.source[kept] == Source.CACHE
            self._joint.observe(
                pending.joined,
                kept,
                matched=matched,
                cache_tried=np.where(of_cache, pending.plan.length[kept], 0).astype(np.int32),
                model_hits=hits,
                model_tried=tried,
            )

    def _observe(self, rows: list[Followed], slots: NDArray[np.int64]) -> Observations:
        observations = self._buffer.head(len(rows))

        def draft() -> bool:
            self._cache.draft(rows, observations, self._predictor.depth)
            return True

        if not self._guarded("suffix_cache", draft, False):
            observations.clear_drafts()
        for index, row in enumerate(rows):
            prompt_length = len(row.request.origin_input_ids)
            observations.put(index, row.newest_token(), prompt_length, row.taken)
        observations.history[:] = self._predictor.history(slots)
        return observations

    def _view(
        self,
        rows: list[Followed],
        slots: NDArray[np.int64],
        observations: Observations,
        foretold: NDArray[np.int64] | None,
    ) -> tuple[StepView, Joined | None]:
        started = time.perf_counter()
        survival = self._guarded("gate", lambda: self._predictor.survival(observations), None)
        if self._predictor.gate is not None:
            self.metrics.gate_ran(time.perf_counter() - started)
        joined = self._join(observations, survival, slots, foretold)
        if joined is not None:
            survival, model, overlap = joined.survival, joined.model_survival, joined.overlap
        else:
            model, overlap = self._acceptance.survival(slots), None
        # What lies beyond a request's token limit would be verified for nothing.
        room = np.array([row.room() for row in rows], np.int32)
        inside = self._model_positions < room[:, None]
        view = StepView(
            cache_length=np.minimum(observations.length, room),
            cache_score=observations.score,
            survival=survival,
            model_survival=model * inside,
            model_free=FREE_MODEL_TOKENS,
            context_tokens=int(
                observations.prompt_length.sum() + observations.generated_length.sum()
            ),
            overlap=overlap * inside if overlap is not None else None,
        )
        return view, joined

    def _join(
        self,
        observations: Observations,
        survival: NDArray[np.float32] | None,
        slots: NDArray[np.int64],
        foretold: NDArray[np.int64] | None,
    ) -> Joined | None:
        """Both drafts compared, where rows may have both."""
        joint = self._joint
        few = observations.rows <= MOST_ROWS
        if joint is None or survival is None or not few or not observations.length.any():
            return None
        tokens, length = observations.tokens, observations.length
        return self._guarded(
            "joint",
            lambda: joint.join(tokens, length, survival, self._acceptance.rates(slots), foretold),
            None,
        )

    def _grow(self, rows: int) -> None:
        if rows > len(self._buffer.length):
            self._buffer = Observations.allocate(2 * rows, self._depth)
        if self._requests.capacity > self._predictor.capacity:
            for part in (self._predictor, self._acceptance, self._report):
                part.grow(self._requests.capacity)

    def _reset(self, slots: NDArray[np.int64]) -> None:
        if len(slots):
            for part in (self._predictor, self._acceptance, self._report):
                part.reset(slots)
            self._show_cache()

    def _guarded(self, part: str, call: Callable[[], T], instead: T) -> T:
        """Run ``call``; if it raises, count it, log the first of its kind, and use ``instead``."""
        try:
            return call()
        except Exception:
            self.metrics.fallback(part)
            if part not in self._logged:
                self._logged.add(part)
                logger.exception(
                    "hybridspec: %s failed; requests go on without it. Counted in "
                    "hybridspec_fallbacks_total, logged only once.",
                    part,
                )
            return instead


def _plain(rows: int) -> Decision:
    return Decision(1, np.zeros(rows, np.int8), np.zeros(rows, np.int32))


def _carry_out(decision: Decision, observations: Observations) -> StepPlan:
    """Fill the chosen cache drafts in."""
    room = decision.width - 1
    chosen = (decision.source == Source.CACHE)[:, None]
    tokens = np.where(chosen, observations.tokens[:, :room], 0)
    tokens = np.maximum(tokens, 0)  # padding is -1; any valid token id will do
    return StepPlan(
        width=decision.width,
        source=decision.source,
        length=decision.length,
        tokens=tokens,
        model_length=decision.model_length,
        model_forward=decision.model_length > FREE_MODEL_TOKENS,
        branch=decision.branch,
    )
