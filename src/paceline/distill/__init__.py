"""Trains a draft for a target from nothing but the target: it writes the text, and its laws are the lesson.

Read in this order: recipe.py (what a run is), job.py (from options to a draft with its card), run.py (the loop),
writer.py with engine_decoder.py and rollout.py (text), teacher.py, losses.py and train.py (one step), acceptance.py
and verdict.py (what the result is worth). folder.py keeps what a run that was stopped goes on from.
"""
