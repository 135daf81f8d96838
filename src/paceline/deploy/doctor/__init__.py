"""`paceline deploy doctor`: inside a pod (or on any machine), what would keep a server from starting, and what to do.

    diagnose(Wanted(...), System()) -> list[Finding]

Every check reads through `System`, so that tests can put a broken machine in its place.
"""

from paceline.deploy.doctor.checks import CHECKS, diagnose
from paceline.deploy.doctor.findings import Finding, Wanted
from paceline.deploy.doctor.system import System

__all__ = ["CHECKS", "Finding", "System", "Wanted", "diagnose"]
