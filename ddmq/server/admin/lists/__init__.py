"""Form 2 of the lists of the admin API: pages with a cursor, which do not compute the whole list."""
