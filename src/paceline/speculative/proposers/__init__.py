"""Proposers: what runs ahead of the target. The protocol and its implementations, one a file."""

from paceline.speculative.proposers.base import NoProposer, Proposer
from paceline.speculative.proposers.draft_model import DraftModelProposer
from paceline.speculative.proposers.ngram import NgramProposer

__all__ = ["DraftModelProposer", "NgramProposer", "NoProposer", "Proposer"]
