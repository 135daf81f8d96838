"""Trains a draft for a target from nothing but the target: it writes the text, and its laws are the lesson.

Read in this order: recipe.py (what a run is), run.py (the loop), writer.py and rollout.py (text),
losses.py and train.py (one step), acceptance.py (what the result is worth).
"""
