"""COCO's annotations find their rows: against the eccv_caption package's own numbers, for splits of any order."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main
from aoq.pipeline.data.annotations import read_annotations, write_coco_classes, write_coco_relevance
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.evaluation.annotated import measure_annotations


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


def test_some_images_in_another_order_score_as_the_package_has_them(tmp_path, known):
    images = coco_images(known)
    chosen = np.random.default_rng(0).permutation(5000)[:400]
    split = write_split(tmp_path, [images[row] for row in chosen], 400)
    write_coco_relevance(tmp_path, split)
    similarity = np.random.default_rng(1).normal(size=(400, 2000)).astype(np.float32)
    result = measure_annotations(similarity, split, tmp_path, folds=1)["relevance"]
    captions = [int(known.coco_ids[5 * row + n]) for row in chosen for n in range(5)]
    here = set(captions), {images[row] for row in chosen}
    for name, right in (("eccv", known.eccv_gts), ("cxc", known.cxc_gts)):
        for direction, queries, candidates, scores in (
            ("i2t", [images[row] for row in chosen], captions, similarity),
            ("t2i", captions, [images[row] for row in chosen], similarity.T),
        ):
            among = here[0] if direction == "i2t" else here[1]
            hits = []
            for query, row in zip(queries, scores, strict=True):
                ours = set(right[direction].get(query, ())) & among
                if ours:
                    hits.append(candidates[int(row.argmax())] in ours)
            assert result[f"relevance_{name}"][direction]["r1"] == pytest.approx(100 * np.mean(hits))


def test_all_of_them_go_by_their_order(tmp_path, known):
    split = write_split(tmp_path, range(5000), 5000)
    write_coco_relevance(tmp_path, split)
    images, captions = read_annotations(tmp_path, split).relevance["relevance_eccv"]["i2t"]
    row, ids = coco_images(known), known.coco_ids
    result = {(row[image], int(ids[caption])) for image, caption in zip(images, captions, strict=True)}
    right = {(image, caption) for image, right in known.eccv_gts["i2t"].items() for caption in right}
    assert result == {(image, caption) for image, caption in right if caption in ids}
    assert (len(result), len(right)) == (22548, 22550)


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
    made = CliRunner().invoke(main, ["data", "relevance", str(tmp_path)])
    made_too = CliRunner().invoke(main, ["data", "classes", str(tmp_path), str(tmp_path / "instances.json")])
    assert (made.exit_code, made_too.exit_code) == (0, 0)
    written = [*made.output.split(), *made_too.output.split()]
    names = ("relevance_eccv.parquet", "relevance_cxc.parquet", "classes.npy")
    assert written == [str(tmp_path / f"testall_{name}") for name in names]
    checked = CliRunner().invoke(main, ["data", "check", str(tmp_path)])
    assert checked.exit_code == 0, checked.output
    refused = CliRunner().invoke(main, ["data", "relevance", str(tmp_path), "--split", "test"])
    assert refused.exit_code == 1
    assert "split 'test' needs test_ims.npy" in refused.stderr
