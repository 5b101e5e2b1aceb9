"""LightLLM as the host: dynamic MTP on its real decode path, without a change to its files.

Importing this package changes nothing and imports neither torch nor LightLLM; `hooks.install` does what is done.
"""
