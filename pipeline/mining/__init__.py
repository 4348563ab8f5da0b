"""Mining and reranking, which make tables, and estimates of the time and memory that mining takes."""
