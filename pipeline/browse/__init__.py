"""Local web pages to look through negative tables and runs, and to mark negatives that are true matches."""
