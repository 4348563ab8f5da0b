"""What people have: images and captions in the layouts that they come in."""
