"""What proposes tokens on LightLLM: one file per kind behind one interface (`interface.LightLLMDrafter`).

::

    checkpoints, layouts, tensor_files   what a draft folder is; read without torch
    tensor_values                        its weights
    capture                              hidden states of the target's layers
    draft_kv, memory                     KV of drafters with a shape of their own, on the target's token slots
    loading                              the drafter that the start arguments name
    vocabulary                           output layers with fewer tokens than the target's
    mtp, eagle3                          kinds that draft one token after the other
    block, dflash, dspark                kinds that draft a block of them in one pass
"""
