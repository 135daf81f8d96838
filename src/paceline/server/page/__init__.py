"""The page at /: a playground and the live status, as plain files that ask the API like any other client.

There is no build step and nothing is fetched from elsewhere. The files hold nothing secret and are given without a
key; where the server has keys the page asks for one.
"""
