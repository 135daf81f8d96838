"""paceline tune: which K to draft at which load, for a pair of models on this machine with one's own prompts."""
