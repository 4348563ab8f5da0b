"""Mining and reranking, which make tables, and forecasts of mining."""
