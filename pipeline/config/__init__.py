"""Sections of the files of experiments and studies: options, ranges, and combinations that fit."""
