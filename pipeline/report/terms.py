"""Definitions of the page's terms, each shown when its term is chosen."""

from __future__ import annotations

TERMS = {
    "rsum": "The sum of the six recalls: R@1, R@5 and R@10, of captions for an image and of images for a caption. "
    "At most 600.",
    "i2t": "Image to text: an image is the query, captions are searched.",
    "t2i": "Text to image: a caption is the query, images are searched.",
    "R@K": "Recall at K: the percentage of queries with a right answer among the first K.",
    "95 % interval": "The range of 95 % of the bootstrap's replicates. A replicate draws test images with replacement, "
    "each with its captions.",
    "p": "The probability of a difference at least as large if the two runs were exchanged at random, image by image.",
    "control": "The same training without offline negatives: what round two must beat.",
    "PMRP": "Plausible-match R-Precision: R-Precision where images that differ in at most 0, 1 or 2 of the things they "
    "show count as matches.",
    "R-Precision": "For a query with R right answers, the percentage of them among its first R.",
    "mAP@R": "For a query with R right answers, the mean of the precision at each right answer among its first R.",
    "Spearman": "Rank correlation of the model's scores with people's, times 100.",
    "Kendall": "Kendall's rank correlation of the model's scores with people's, times 100.",
    "▲": "At least as similar to the anchor as its lowest-scoring positive: perhaps a false negative.",
    "near-duplicate": "Shares four of five words with a caption of the anchor: probably a false negative.",
    "cross-retrieval rank": "The worse of a pair's two ranks, one in each direction.",
}
