"""What the inner loops take and give."""

from __future__ import annotations

from typing import Protocol

from lightspec_lightllm.planner.survival import CellArray
from lightspec_lightllm.planner.types import FloatArray, IntArray


class Loops(Protocol):
    """All inner loops. ``N`` requests, ``D`` depths, ``K`` the most of these, ``M`` requests of several rounds, ``T``
    single trials; an int[0] array of levels stands for none."""

    # --- what hosts say -----------------------------------------------------------------------------------------------

    def are_probabilities(self, values: FloatArray, /) -> bool:
        """Whether all of float[N, K] are in 0..1, -0 and NaN not being so."""

    def proposal_counts(self, proposed: IntArray, tally: IntArray, /) -> int:
        """The sum of int[N], or -1 where one is outside 0..K; fills int[K + 1] ``tally``, how many are 0, 1, .. K."""

    def round_counts(
        self, verified: IntArray, accepted: IntArray, proposed: IntArray, most: int, trials: IntArray, /
    ) -> tuple[bool, int, int, int]:
        """Of int[N] each: whether a round can have given them; fills int[N] ``trials``; their sum, and those of
        ``verified`` and ``accepted``."""

    # --- confidences --------------------------------------------------------------------------------------------------

    def cells(
        self, codes: IntArray, levels: IntArray, terms: CellArray, depths: CellArray, offsets: CellArray, /
    ) -> CellArray:
        """int16[D, N] cells of int[D, N] codes (see `SurvivalTable`)."""

    def read_drafts(
        self,
        confidence: FloatArray,
        num_depths: int,
        proposed: IntArray,
        levels: IntArray,
        terms: CellArray,
        depths: CellArray,
        offsets: CellArray,
        some_unknown: bool,
        codes: IntArray,
        survival: FloatArray,
        curve: FloatArray,
        /,
    ) -> None:
        """Fill int[D, N] codes of the first D depths of float[N, K] confidences, float[K, N] survivals, and rows and
        gains of their curve, float[2, CURVE_CELLS + 1].

        Args:
            proposed: int[N], drafts that there are of each request; int[0]: all D.
            some_unknown: whether there may be NaN.
        """

    def lay_codes(self, codes: IntArray, known: IntArray, proposed: IntArray, start: int, /) -> None:
        """Write one round's int[D, N] codes into int[K, M] from ``start`` on: unknown past what was proposed."""

    def score_trials(
        self,
        trials: IntArray,
        accepted: IntArray,
        codes: IntArray,
        levels: IntArray,
        by_code: FloatArray,
        by_depth: FloatArray,
        by_level: FloatArray,
        neutral: FloatArray,
        bin_scores: FloatArray,
        depth_scores: FloatArray,
        request_scores: FloatArray,
        /,
    ) -> tuple[int, float]:
        """How many trials of int[M] requests have a known confidence, of int[K, M] codes; and the log-likelihood ratio
        of what happened, by confidences rather than by float[K] ``neutral`` acceptances alone.

        Adds their residual and information to float[2, bins], float[2, K] and float[2, M] scores.

        Args:
            by_code, by_depth, by_level: float[NUM_CODES + K], float[K], float[LEVELS]: odds against an acceptance are
                the product of these.
        """

    def whole_terms(
        self,
        bins: FloatArray,
        depths: FloatArray,
        plain: FloatArray,
        by_code: FloatArray,
        by_depth: FloatArray,
        rounded: CellArray,
        /,
    ) -> None:
        """Fill the odds against of `score_trials` from float[bins] and float[K] log-odds, ``plain`` those by depth of a
        draft without a confidence; and int16[NUM_CODES + 2 K], the log-odds by code and by depth in whole numbers."""

    # --- what is learned ----------------------------------------------------------------------------------------------

    def depth_scores(self, trials: IntArray, accepted: IntArray, neutral: FloatArray, /) -> FloatArray:
        """float[2, K], residual and information by depth of int[M] trials at float[K] acceptances."""

    def level_scores(
        self,
        trials: IntArray,
        accepted: IntArray,
        levels: IntArray,
        acceptance: FloatArray,
        expected: FloatArray,
        /,
    ) -> tuple[FloatArray, FloatArray]:
        """Residual and information of int[M] trials, by depth as float[2, K] and by request as float[2, M].

        Args:
            acceptance: float[LEVELS, K].
            expected: float[2, LEVELS, K + 1], what the first 0, 1, .. K trials of a request bring and tell.
        """

    def level_table(
        self,
        log_odds: FloatArray,
        acceptance: FloatArray,
        survival: FloatArray,
        expected: FloatArray,
        value: FloatArray,
        place: IntArray,
        /,
    ) -> None:
        """Fill a `LevelTable` of float[K] log-odds: float[LEVELS, K] each; float[2, LEVELS, K + 1]; and in the order of
        the table float[LEVELS * K] and int[2, LEVELS * K], level and depth from 1."""

    def level_curve(
        self, counts: IntArray, levels: IntArray, value: FloatArray, place: IntArray, curve: FloatArray, /
    ) -> None:
        """Fill float[2, LEVELS * K + 1], rows and gains of the curve of int[N] drafts in the order of a table."""

    def acceptances(self, log_odds: FloatArray, /) -> FloatArray:
        """float[2, K]: acceptances and survivals of float[K] log-odds."""

    def learn_depths(
        self,
        value: FloatArray,
        info: FloatArray,
        before: FloatArray,
        residual: FloatArray,
        information: FloatArray,
        memory: float,
        prior: float,
        strength: float,
        /,
    ) -> tuple[FloatArray, float]:
        """Take float[K] residuals into ``value`` and ``info``: the terms as they are read now, and their mean rise."""

    def learn_bins(
        self,
        value: FloatArray,
        info: FloatArray,
        before: FloatArray,
        residual: FloatArray,
        information: FloatArray,
        memory: float,
        strength: float,
        /,
    ) -> tuple[FloatArray, float]:
        """The same of float[bins]."""

    def read_bins(self, value: FloatArray, info: FloatArray, strength: float, /) -> FloatArray:
        """float[bins], terms of the bins: their own trials, and before these the log-odds of the confidence, scaled and
        shifted as the bins with trials say (Platt 1999)."""

    # --- requests -----------------------------------------------------------------------------------------------------

    def find_entries(
        self, ids: IntArray, owner: IntArray, offset: FloatArray, info: FloatArray, level: IntArray, bits: int, /
    ) -> IntArray:
        """int[N], entries of requests in tables of ``2 ** bits``, cleared for those that are new."""

    def learn_offsets(
        self,
        ids: IntArray,
        residual: FloatArray,
        information: FloatArray,
        rise: float,
        memory: float,
        owner: IntArray,
        position: IntArray,
        offset: FloatArray,
        info: FloatArray,
        level: IntArray,
        spread: tuple[float, float, float],
        /,
    ) -> tuple[float, float, float]:
        """Take what trials say of int[M] requests, of which some may be the same, into their tables, and into excess,
        weight and prior of the spread of requests (see `RequestOffsets`).

        Args:
            position: room to work in, as large as the tables.
        """

    # --- the two stages -----------------------------------------------------------------------------------------------

    def gain_at(self, rows: FloatArray, gain: FloatArray, extra: float, /) -> float:
        """Height of a gain curve."""

    def waiting_curve(self, tally: IntArray, value: FloatArray, /) -> FloatArray:
        """float[2, K + 1], rows and gains of the drafts of requests of which int[K + 1] propose 0, 1, .. K, where those
        of depth 1..K are worth ``value``."""

    def best_extra(
        self,
        rows: FloatArray,
        gain: FloatArray,
        extra: FloatArray,
        ms: FloatArray,
        most: float,
        most_ms: float,
        price: float,
        /,
    ) -> float:
        """The best of ``extra`` drafted rows, by ``gain - price * ms``, or ``most`` if that is better; only those up to
        it count. Of equals the least."""

    def expected_drafts(self, cells: CellArray, num_requests: int, /) -> tuple[FloatArray, IntArray, FloatArray]:
        """Value, depth and count of the drafts of N requests, by int16[K, M] cells of requests like them, in bins half
        a bit of survival wide; the likeliest first."""

    def ladder_values(
        self,
        value: FloatArray,
        count: FloatArray,
        extra: FloatArray,
        ms: FloatArray,
        ends: IntArray,
        price: float,
        /,
    ) -> FloatArray:
        """float[D]: what `best_values` gives where all requests are alike, and one curve serves every depth: the best
        of ``extra`` rows up to each of int[D] ``ends``, which are indices into them."""

    def best_values(
        self,
        value: FloatArray,
        depth: IntArray,
        count: FloatArray,
        steps: IntArray,
        extra: FloatArray,
        ms: FloatArray,
        price: float,
        /,
    ) -> FloatArray:
        """float[steps]: the most that drafts up to each depth bring over ``extra`` rows, less the price of ``ms``."""

    def net_values(
        self,
        best: FloatArray,
        num_requests: int,
        chained: FloatArray,
        step_price: float,
        off_price: float,
        start_price: float,
        more: float,
        /,
    ) -> FloatArray:
        """float[D], tokens of a round with each of the draft steps, less what its time is worth: N, and ``best`` less
        the prices of starting a draft and of ``chained`` passes, and ``more``; without drafting, N less ``off_price``.
        """
