"""A pickle that no reader may unpickle."""

ENDLESS = b"\x80\x02})" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(60)) + b"Ns."
"""A pickled dictionary with the key x = (x, x), nested 60 deep: unpickling it takes 2^60 steps."""
