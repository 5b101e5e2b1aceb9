"""What proposes tokens on LightLLM: one file per kind behind one interface (`interface.LightLLMDrafter`).

::

    checkpoints, layouts, tensor_files   what a draft folder is; read without torch
    tensor_values                        its weights
    capture                              hidden states of the target's layers
    draft_kv, memory                     KV of drafters with a shape of their own, on the target's token slots
    loading                              the drafter that the start arguments name
    mtp, eagle3                          the kinds
"""
