"""The delay levels: messages that wait a fixed time, first in, first out per level.

`service.LevelService` runs the levels this process holds, a `runner` each; `core/level` decides.
"""
