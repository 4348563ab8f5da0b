"""Pretrained encoders inside models. Their library is an extra, and imported where one is built."""
