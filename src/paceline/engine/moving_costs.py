"""Costs at which a controller really chooses: whether a row drafts, and how much, depends on load and on acceptance.

A law is to be tested while K moves. What steps cost on the machine at hand may say that nobody ever drafts, and then
nothing of speculation would have been tested.
"""

from __future__ import annotations

from paceline.engine.curves import Curve
from paceline.engine.step_costs import PaddedCosts, RaggedCosts, StepCosts
from paceline.plan import StepShapes
from paceline.step_forms import Form

# In units of a pass over one token. At 64 rows a draft pays if one in eight such is taken: less than settings that are
# hard to draft for have, more than the later drafts of most rows. A row alone drafts nearly always.
_VERIFY = Curve([1, 64, 256], [1.0, 1.4, 1.8])
_DRAFT = Curve([1, 64], [0.005, 0.05])


def moving_costs(shapes: StepShapes) -> StepCosts:
    """For steps as the executor runs them: captured ones, or eager."""
    forms = shapes.forms
    if not forms.sizes:
        return RaggedCosts(_VERIFY, _DRAFT)

    def seconds(form: Form) -> float:
        return _VERIFY(form.num_tokens) + form.k * _DRAFT(form.drafting)

    return PaddedCosts.measured(forms, seconds)
