"""Wrong pairs: what is drawn, what a file may say, and what is refused."""

import numpy as np
import pytest

from aoq.pipeline.config.dataset import Noise
from aoq.pipeline.data.batches import epoch_order
from aoq.pipeline.data.noise import draw_noise, read_noise

IMAGE_OF = np.repeat(np.arange(40, dtype=np.int32), [3, 5] * 20)


@pytest.mark.parametrize("ratio", [0.2, 0.5, 1.0])
def test_captions_are_drawn_one_by_one(ratio):
    noisy = draw_noise(IMAGE_OF, Noise(ratio=ratio, seed=3))
    moved = (noisy != IMAGE_OF).sum()
    assert 0.85 * int(ratio * len(IMAGE_OF)) <= moved <= int(ratio * len(IMAGE_OF))
    assert sorted(noisy) == sorted(IMAGE_OF)
    parted = [len(set(noisy[image == IMAGE_OF])) for image in range(40)]
    assert max(parted) > 1
    np.testing.assert_array_equal(noisy, draw_noise(IMAGE_OF, Noise(ratio=ratio, seed=3)))
    assert (noisy != draw_noise(IMAGE_OF, Noise(ratio=ratio, seed=4))).any()


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_what_is_drawn_does_not_depend_on_when_a_training_of_the_same_seed_visits_it(seed):
    image_of = np.repeat(np.arange(1000, dtype=np.int32), 5)
    wrong = draw_noise(image_of, Noise(ratio=0.5, seed=seed)) != image_of
    for epoch in range(3):
        first, last = np.split(wrong[epoch_order(5000, seed=seed, epoch=epoch)], 2)
        assert abs(first.mean() - last.mean()) < 0.05  # of 2,500 each: three and a half standard deviations


@pytest.mark.parametrize("ratio", [0.25, 1.0])
def test_images_are_drawn_with_all_their_captions(ratio):
    noisy = draw_noise(IMAGE_OF, Noise(level="image", ratio=ratio, seed=1))
    goes_to = [set(noisy[image == IMAGE_OF]) for image in range(40)]
    assert all(len(images) == 1 for images in goes_to)
    assert set().union(*goes_to) == set(range(40))
    moved = sum(images != {image} for image, images in enumerate(goes_to))
    assert 0.7 * ratio * 40 <= moved <= ratio * 40


def test_files_of_both_protocols_are_read(tmp_path):
    by_caption = draw_noise(IMAGE_OF, Noise(ratio=0.3))
    np.save(tmp_path / "captions.npy", by_caption)
    np.testing.assert_array_equal(read_noise(tmp_path / "captions.npy", IMAGE_OF), by_caption)
    of_images = np.random.default_rng(0).permutation(40)
    np.save(tmp_path / "images.npy", of_images)
    np.testing.assert_array_equal(read_noise(tmp_path / "images.npy", IMAGE_OF), [of_images[m] for m in IMAGE_OF])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            np.zeros(7, int),
            r"one integer image row per caption, shape \(160,\), or one per image, \(40,\).* has \(7,\)",
        ),
        (IMAGE_OF.astype(float), "float64"),
        (IMAGE_OF[:, None], r"has \(160, 1\)"),
        (np.where(np.arange(160) == 9, 40, IMAGE_OF), "entry 9 is 40, but the training images are 0 to 39"),
        (np.where(np.arange(160) == 0, 5, IMAGE_OF), r"a permutation: it gives image [05], which has \d captions, \d"),
        (np.where(np.arange(40) == 2, 5, np.arange(40)), "a permutation: it gives image 2, which has 3 captions, 0"),
    ],
)
def test_what_is_no_noise_file_is_refused(tmp_path, rows, message):
    np.save(tmp_path / "noise.npy", rows)
    with pytest.raises(ValueError, match=message):
        read_noise(tmp_path / "noise.npy", IMAGE_OF)
