"""The negative table: its files, audit, statistics and fusion; screens of it, and its exchange with other programs."""
