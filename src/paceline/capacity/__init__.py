"""`paceline plan`: what a model pair needs and gives on a GPU that nobody has rented yet.

From first principles, in the order in which the files build on each other:

    hardware.py, prices.py   what is known of GPUs and of what they cost (data/*.toml, or a user's file)
    pair.py                  two models as the products, cache and weights that a GPU sees
    efficiency.py            how much of a GPU's peak rates kernels reach: named numbers, each with its origin
    roofline.py              seconds of a pass and of a step
    offline_run.py           what `paceline bench offline` would measure: decode speed, its tail included
    calibration.py           efficiency fitted to such a measurement
    memory.py                the engine's own memory plan, for a card that is not here
    serving.py               time to the first token and between tokens at a number of sequences
    request.py, question.py  what a user types; what is asked
    planner.py               which K, how many GPUs and what they cost for a load within an objective
    economics.py             money
    comparison.py            the same load on several kinds of GPU
    document.py, tables.py, page.py   the JSON document, the terminal, the page with sliders
    start_document.py        `--preset llama-70b-4xh100`: a public claim held against all of the above
"""
