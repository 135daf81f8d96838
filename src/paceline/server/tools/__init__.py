"""Tool calls: what a request may say about tools (fields), how a family of models writes calls (formats), what a
request comes to with its model (plan), and calls read from the text as it comes (parser)."""
