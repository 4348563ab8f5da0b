"""What makes tables: mining and reranking; and estimates of it."""
