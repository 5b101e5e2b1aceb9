"""Measures a server over HTTP: any that speaks OpenAI's API or LightLLM's. The engine behind it is not asked.

::

    apis, events     what is sent to each API, and what its stream says
    request          one request: sent, timed, retried, its failure worded
    load             many requests: arrivals, concurrency, interruption
    metrics          the numbers of ``vllm bench serve``
    speculation      what the server's /metrics counted meanwhile
    answers          whether the answers are right
    comparison       result files against each other
"""
