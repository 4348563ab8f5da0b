"""sentence-transformers trains a CLIP on exports for three steps, and its vision tower sees the pictures."""

import pytest

from tests.exports.conftest import DEPTHS, PICTURES, TEXTS, VECTORS

pytestmark = [pytest.mark.exports, pytest.mark.filterwarnings("ignore")]

BATCH, STEPS = 4, 3


class Seen:
    """Count the pictures and texts that pass a CLIP's towers, and collect the pictures' colours."""

    def __init__(self, model):
        self.pictures, self.texts, self.colours = 0, 0, set()
        clip = model[0].auto_model if hasattr(model[0], "auto_model") else model[0].model
        clip.vision_model.register_forward_pre_hook(self._see, with_kwargs=True)
        clip.text_model.register_forward_pre_hook(self._read, with_kwargs=True)

    def _see(self, _, arguments, named):
        pixels = named["pixel_values"] if "pixel_values" in named else arguments[0]
        self.pictures += len(pixels)
        self.colours |= set(pixels.mean(dim=(1, 2, 3)).tolist())

    def _read(self, _, arguments, named):
        self.texts += len(named["input_ids"] if "input_ids" in named else arguments[0])


@pytest.fixture
def train(clip, tmp_path):
    """Three steps of a loss on a data set; what the towers saw."""
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer import losses

    def run(rows, loss="MultipleNegativesRankingLoss", steps=STEPS, **options):
        model = SentenceTransformer(str(clip), device="cpu")
        seen = Seen(model)
        given = {"output_dir": str(tmp_path / "run"), "report_to": "none", "save_strategy": "no", "use_cpu": True}
        given |= {"max_steps": steps, "per_device_train_batch_size": BATCH, "dataloader_drop_last": True}
        arguments = SentenceTransformerTrainingArguments(**given | options)
        trainer = SentenceTransformerTrainer(model, arguments, rows, loss=getattr(losses, loss)(model))
        assert trainer.train().global_step == steps
        seen.losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return seen

    return run


def expect(seen, direction, documents):
    """A batch has one anchor a row, and `documents` of the other side."""
    pictures, texts = (1, documents) if direction == "i2t" else (documents, 1)
    assert (seen.pictures, seen.texts) == (STEPS * BATCH * pictures, STEPS * BATCH * texts)
    assert len(seen.colours) > 3


@pytest.mark.parametrize("direction", DEPTHS)
@pytest.mark.parametrize(
    ("name", "loss", "documents"),
    [
        ("triplet", "TripletLoss", lambda depth: 2),
        ("n-tuple", "MultipleNegativesRankingLoss", lambda depth: 1 + depth),
        ("labeled-pair", "ContrastiveLoss", lambda depth: 1),
        ("ids", "MultipleNegativesRankingLoss", lambda depth: 1 + depth),
    ],
)
def test_pictures_arrive(name, loss, documents, direction, export, loaded, train):
    rows = loaded(export(name, direction, *PICTURES)).train
    expect(train(rows, loss), direction, documents(DEPTHS[direction]))


def test_packed_pictures_arrive_where_their_files_are_not(export, loaded, train, world, monkeypatch):
    folder = export("ids", "t2i", *PICTURES, "--pack", "--num-negatives", 2)
    aside = world.folder / "pictures"
    aside.rename(world.folder / "elsewhere")
    try:
        expect(train(loaded(folder).train), "t2i", 3)
    finally:
        (world.folder / "elsewhere").rename(aside)


@pytest.mark.parametrize("loss", ["MarginMSELoss", "DistillKLDivLoss"])
@pytest.mark.parametrize("name", ["triplet", "n-tuple", "ids"])
def test_scores_are_learnt_by_the_losses_that_the_readme_names(name, loss, export, loaded, train):
    folder = export(name, "t2i", *PICTURES, "--scores", *VECTORS)
    assert loss in (folder / "README.md").read_text()
    rows = loaded(folder).train
    given = {"steps": 12, "per_device_train_batch_size": len(rows), "learning_rate": 3e-4, "logging_steps": 1}
    first, *_, last = train(rows, loss, **given).losses
    assert last < first


def test_texts_in_the_place_of_pictures_are_read_as_texts(export, loaded, train):
    """No picture is seen: what is counted above can fail."""
    seen = train(loaded(export("triplet", "t2i", *TEXTS)).train)
    assert (seen.pictures, seen.texts) == (0, STEPS * BATCH * 3)
