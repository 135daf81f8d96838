"""Who may ask, and how much: API keys, limits a key and of the whole server, and the middleware that applies them."""
