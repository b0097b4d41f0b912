"""The code of an application, as a client sees it: arguments of calls, and errors of handlers."""
