"""Several processes over one directory: one is the writer, the others are its members.

    election.py  who becomes the writer, and when; one Backend for the proxies, whichever this process is
    member.py    the Backend of a process that is not the writer: link.py is its session, reads.py its reads
    requests.py  the kinds of requests, in one table that both ends use, and a member's requests
    server.py    the writer's Unix socket: session.py is one member's end
    pipe.py      frames and the socket that passes them; codec.py their bodies; mirror.py topics and settings

docs/formats-sessions.md describes the protocol and what happens at each bound.
"""
