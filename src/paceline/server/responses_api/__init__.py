"""POST /v1/responses: OpenAI's newer form of a chat, without what a server would have to remember.

fields.py says it as a chat; output.py says the answer as output items and events; router.py is the endpoint.
"""
