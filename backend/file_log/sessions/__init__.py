"""Several processes over one directory: one is the writer, the others are its members.

    wire/      the protocol of the writer's Unix socket: frames, bodies, addresses
    writer/    the socket's server: sessions of other processes on any Backend
    member/    the Backend of a process that is not the writer
    elected.py one Backend for the proxies, whichever of the two this process is now
    election.py who becomes the writer, and when; `share` starts it all

docs/formats-sessions.md describes the protocol and what happens at each bound.
"""
