"""LightLLM on a CPU: its real backend and its real server, on tiny models, with nothing of LightLLM changed.

==================  ================================================================================================
``checkout``        where LightLLM's source is, and why its tests cannot run here
``virtual_cuda``    the CPU as a CUDA device, Triton kernels in the interpreter or as torch twins
``models``          tiny targets and drafters, written to a folder
``job``             what to run and what came of it: plain data, JSON on both sides
``launcher``        runs jobs, each in a process forked from one that has imported everything
``job_process``     one job: ranks, and the router's part, which feeds them through LightLLM's shared memory
``rank``            one model process: LightLLM's own choice of backend class, with its two threads
``recorder``        what is written down on the way: forwards, rounds, slots, KV
``controls``        set-ups that a job may name: broken verification, planners that do their worst
``reference``       greedy text by transformers, in a process without the virtual device
``kv``              KV that rounds left behind, beside KV computed from scratch
``server``          the HTTP server, in a process tree of its own
``leftovers``       files that a killed LightLLM leaves behind
``workload``        requests and configurations that several tests run
==================  ================================================================================================

One job by hand, from the root of the repository::

    python -m tests.adapters.lightllm.harness models /tmp/tiny
    python -m tests.adapters.lightllm.harness run job.json result.json
"""
