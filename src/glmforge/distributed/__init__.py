"""Ranks: who this process is, how ranks talk to each other, and access to ZeRO-partitioned weights.

``env`` reads the launcher's variables, ``collectives`` holds the process group and the few small
exchanges of a step, ``zero`` wraps what DeepSpeed alone knows (partitioned parameters).
"""
