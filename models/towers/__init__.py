"""Pretrained encoders inside models. Their library is an extra, imported when an encoder is built."""
