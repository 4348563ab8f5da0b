"""What makes tables: mining, reranking and refreshing; and estimates and drift."""
