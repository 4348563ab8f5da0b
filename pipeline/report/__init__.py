"""The HTML page about runs, and the tables of a study."""
