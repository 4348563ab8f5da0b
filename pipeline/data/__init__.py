"""Dataset folders: their files, checks, annotations, vocabulary and batches; the demo world."""
