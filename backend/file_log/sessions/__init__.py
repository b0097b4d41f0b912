"""Several processes over one directory: one is the writer, the others are its members.

    elected.py   one Backend for the proxies, whichever of the two this process is now
    election.py  who becomes the writer, and when; it starts it all
    member.py    the Backend of a process that is not the writer: link.py its end of the session, requests.py
                 and outstanding.py what it asked, reads.py how it reads, joining.py its memberships
    server.py    the writer's Unix socket: session.py a member's end, serving.py what each request does
    pipe.py      frames and the socket that passes them; codec.py their bodies; mirror.py topics and settings

docs/formats-sessions.md describes the protocol and what happens at each bound.
"""
