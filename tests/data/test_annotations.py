"""Files of what is known beyond the pairs: read as they stand, refused where they do not fit.

COCO's annotations find their rows: against the eccv_caption package's own numbers, for splits of any order.
"""

import json
import warnings
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.data.annotations import read_annotations, write_coco_classes, write_coco_relevance
from aoq.pipeline.data.demo import is_true, labels_path, read_scenes, write_demo_world
from aoq.pipeline.data.folder import open_split
from tests.cli.conftest import run


@pytest.fixture
def folder(tmp_path):
    """Six images with five captions each, of which nothing more is known."""
    write_demo_world(tmp_path, images=8, dev_images=6, seed=0)
    labels_path(tmp_path, "dev").unlink()
    return tmp_path


def test_tables_are_read_from_csv_and_parquet_by_name(folder):
    pq.write_table(pa.table({"caption_id": [3, 3, 7], "image_id": [0, 2, 1]}), folder / "dev_relevance.parquet")
    (folder / "dev_relevance_eccv.csv").write_text("caption_id,image_id,direction\n3,1,i2t\n4,2,t2i\n5,2,t2i\n")
    (folder / "dev_judgements_expert.csv").write_text("image_id,caption_id,score\n1,3,2.5\n0,2,1\n")
    (folder / "devil_relevance.csv").write_text("another split's\n")
    split = open_split(folder, "dev")
    result = {
        name: {direction: [rows.tolist() for rows in pairs] for direction, pairs in by_direction.items()}
        for name, by_direction in read_annotations(folder, split).relevance.items()
    }
    both = [[0, 2, 1], [3, 3, 7]]
    assert result["relevance"] == {"i2t": both, "t2i": both}
    assert result["relevance_eccv"] == {"i2t": [[1], [3]], "t2i": [[2, 2], [4, 5]]}
    judged = read_annotations(folder, split).judgements["judgements_expert"]
    assert (judged.images.tolist(), judged.captions.tolist(), judged.scores.tolist()) == ([1, 0], [3, 2], [2.5, 1.0])


def test_a_generated_world_knows_what_is_true_of_what(tmp_path):
    write_demo_world(tmp_path, images=8, dev_images=30, seed=0)
    split, scenes = open_split(tmp_path, "dev"), read_scenes(tmp_path, "dev")
    pairs = read_annotations(tmp_path, split).relevance["relevance"]
    true = {(i, c) for c in range(split.caption_count) for i in np.flatnonzero(is_true(split.captions[c], scenes))}
    for images, captions in pairs.values():
        assert set(zip(images.tolist(), captions.tolist(), strict=True)) == true
    assert true >= {(image, caption) for caption, image in enumerate(split.image_of)}
    classes = read_annotations(tmp_path, split).classes
    for image, groups in enumerate(scenes.groups):
        assert np.flatnonzero(classes[image]).tolist() == sorted({thing for thing, _, _, number in groups if number})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("relevance", "caption_id,image_id\n30,0\n", "names caption_id 30 to 30, but the split has 0 to 29"),
        ("relevance", "caption_id,image\n1,1\n", "table with the columns caption_id, image_id"),
        ("relevance", "caption_id,image_id\n", "holds no pair"),
        ("relevance", "caption_id,image_id\n1,\n2,1\n", "1 values of column 'image_id' are empty"),
        ("relevance_x", "caption_id,image_id,direction\n1,1,both\n", "direction is 'both'; write i2t or t2i"),
        ("judgements", "image_id,caption_id,score\n1,3,good\n", "table with the columns image_id, caption_id, score"),
        ("judgements", "image_id,caption_id,score\n1,3,1\n1,4,inf\n", r"row 1 \(from 0\) has no finite score"),
        ("judgements", "image_id,caption_id,score\n1,3,nan\n", "column 'score' has type null, and double is needed"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(folder, name, text, message):
    (folder / f"dev_{name}.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_annotations(folder, open_split(folder, "dev"))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view()])
def test_whole_scores_and_texts_of_any_kind_fit_and_damaged_pages_do_not(folder, kind):
    directions = pa.array(["i2t", "t2i"], kind)
    pairs = {"image_id": pa.array([1, 2], pa.uint8()), "caption_id": [3, 4]}
    relevance, judgements = folder / "dev_relevance.parquet", folder / "dev_judgements.parquet"
    pq.write_table(pa.table({**pairs, "direction": directions}), relevance)
    pq.write_table(pa.table({**pairs, "score": [1, 3]}), judgements, compression="none", write_page_checksum=True)
    result = read_annotations(folder, open_split(folder, "dev"))
    assert result.judgements["judgements"].scores.tolist() == [1, 3]
    assert [result.relevance["relevance"][way][1].tolist() for way in ("i2t", "t2i")] == [[3], [4]]
    content = judgements.read_bytes()
    judgements.write_bytes(content.replace((3).to_bytes(8, "little"), (5).to_bytes(8, "little"), 1))
    assert judgements.read_bytes() != content
    with pytest.raises(ValueError, match=r"dev_judgements.parquet is damaged"):
        read_annotations(folder, open_split(folder, "dev"))


def test_classes_are_booleans_or_zeros_and_ones(folder):
    shown = np.eye(6, 4, dtype=np.uint8)
    np.save(folder / "dev_classes.npy", shown)
    assert np.array_equal(read_annotations(folder, open_split(folder, "dev")).classes, shown == 1)
    for classes in (np.ones((5, 3)), np.full((6, 3), 2), np.ones(6)):
        np.save(folder / "dev_classes.npy", classes)
        with pytest.raises(ValueError, match="needs a row of 0 and 1"):
            read_annotations(folder, open_split(folder, "dev"))


@pytest.fixture(scope="module")
def known():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would rather have ujson
        from eccv_caption import Metrics
    return Metrics()


def write_split(folder, ids, images):
    np.save(folder / "testall_ims.npy", np.arange(2 * images, dtype=np.float32).reshape(images, 1, 2))
    (folder / "testall_caps.txt").write_text("".join(f"dog {n} .\n" for n in range(5 * images)))
    (folder / "testall_ids.txt").write_text("".join(f"{image}\n" for image in ids))
    return open_split(folder, "testall")


def coco_images(known):
    return [known.coco_gts["t2i"][int(caption)][0] for caption in known.coco_ids[::5]]


@pytest.mark.parametrize("count", [400, 5000])
def test_pairs_are_those_of_the_package(tmp_path, known, count):
    """Some images, in another order, go by COCO's ids; all 5000 of a test split go by their order."""
    rows, images = np.arange(5000), coco_images(known)
    if count < 5000:
        rows = np.random.default_rng(0).permutation(rows)[:count]
    names = [f"val2014/COCO_val2014_{images[row]:012}.jpg" for row in rows]
    split = write_split(tmp_path, names if count < 5000 else rows, count)
    write_coco_relevance(tmp_path, split)
    if count == 5000:
        with pytest.raises(ValueError, match="split 'dev' has 5000 images with ids like '0': neither COCO's ids"):
            write_coco_relevance(tmp_path, replace(split, name="dev"))
    ids = [images[row] for row in rows], [int(known.coco_ids[5 * row + n]) for row in rows for n in range(5)]
    here = set(ids[0]), set(ids[1])
    found = read_annotations(tmp_path, split).relevance
    for name, right in (("eccv", known.eccv_gts), ("cxc", known.cxc_gts)):
        for direction, order in (("i2t", 1), ("t2i", -1)):
            pairs = zip(*found[f"relevance_{name}"][direction], strict=True)
            theirs = {(query, answer)[::order] for query, own in right[direction].items() for answer in own}
            assert {(ids[0][image], ids[1][caption]) for image, caption in pairs} == {
                (image, caption) for image, caption in theirs if image in here[0] and caption in here[1]
            }


def test_classes_are_those_of_the_instances(tmp_path, known):
    images = coco_images(known)[:3]
    split = write_split(tmp_path, images, 3)
    shown = [(images[0], 1), (images[0], 90), (images[2], 18), (17, 5)]
    instances = {"annotations": [{"image_id": image, "category_id": category} for image, category in shown]}
    (tmp_path / "instances.json").write_text(json.dumps(instances))
    write_coco_classes(tmp_path, split, tmp_path / "instances.json")
    assert np.argwhere(read_annotations(tmp_path, split).classes).tolist() == [[0, 0], [0, 89], [2, 17]]


def test_what_is_not_cocos_is_refused(tmp_path, known):
    split = write_split(tmp_path, ["a.jpg", "b.jpg"], 2)
    with pytest.raises(ValueError, match=r"neither COCO's ids of test images nor all 5000 .* testall_ids.txt"):
        write_coco_relevance(tmp_path, split)
    split = write_split(tmp_path, coco_images(known)[:2], 2)
    instance = '{"annotations": [{"image_id": 1, "category_id": %s}]}'
    for text in ("no json", "[]", '{"annotations": [{"image_id": 1}]}', *(instance % i for i in (0, 91, "1e999"))):
        (tmp_path / "instances.json").write_text(text)
        with pytest.raises(ValueError, match=r"damaged or not .* take COCO's instances_val2014.json"):
            write_coco_classes(tmp_path, split, tmp_path / "instances.json")
    (tmp_path / "instances.json").write_text('{"annotations": []}')
    with pytest.raises(ValueError, match="has no instance in any image"):
        write_coco_classes(tmp_path, split, tmp_path / "instances.json")


def test_the_commands_write_them_beside_the_split(tmp_path, known):
    write_split(tmp_path, coco_images(known)[:40], 40)
    instances = {"annotations": [{"image_id": coco_images(known)[1], "category_id": 3}]}
    (tmp_path / "instances.json").write_text(json.dumps(instances))
    written = run("data", "relevance", tmp_path).output.split()
    written += run("data", "classes", tmp_path, tmp_path / "instances.json").output.split()
    names = ("relevance_eccv.parquet", "relevance_cxc.parquet", "classes.npy")
    assert written == [str(tmp_path / f"testall_{name}") for name in names]
    run("data", "check", tmp_path)
    refused = run("data", "relevance", tmp_path, "--split", "test", code=1)
    assert "split 'test' needs test_ims.npy" in refused.stderr
