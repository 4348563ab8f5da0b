"""Sources of images and captions, in the layouts that are in use."""
